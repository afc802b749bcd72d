#!/bin/sh
# Makes an administrator that may log in from any address. guest may log in from the loopback address only; this script
# runs in the node's network.
set -eu
rewindmq add_user "$NEW_USER" "$NEW_PASSWORD" || rewindmq change_password "$NEW_USER" "$NEW_PASSWORD"
rewindmq set_user_tags "$NEW_USER" administrator
rewindmq set_permissions "$NEW_USER" '.*' '.*' '.*'
