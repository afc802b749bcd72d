#!/bin/sh
# An administrator who may log in from anywhere: guest may from the loopback address only, and this runs on the node's.
set -eu
rewindmq add_user "$NEW_USER" "$NEW_PASSWORD" || rewindmq change_password "$NEW_USER" "$NEW_PASSWORD"
rewindmq set_user_tags "$NEW_USER" administrator
rewindmq set_permissions "$NEW_USER" '.*' '.*' '.*'
