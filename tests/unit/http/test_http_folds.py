"""Each operation of the HTTP API declares the partitions that it folds on a node that pauses some: a new one has to
choose."""

from collections import defaultdict

from rewindmq.engine.http.app import LIVE, ROUTES
from rewindmq.engine.http.reference.operation import Folds, operation_of

# By module the handlers, for each of these.
EXPECTED = {
    Folds.NONE: """
        access: delete_permissions delete_topic_permissions delete_user delete_users hash_password
            list_permissions list_topic_permissions list_users put_permissions put_topic_permissions
            put_user show_permissions show_topic_permissions show_user user_permissions
            user_topic_permissions users_without_permissions vhost_permissions vhost_topic_permissions
        bindings: to_exchange
        clients: close_connection close_user_connections
        clock: repair show
        erasures: erase list_erasures list_expired_bodies
        evidence: check_seals list_audits list_seals
        features: configuration enable_feature_flag reset same
        followers: fetch file forget join keys leader list_all
        health: alarms certificate_expiration mirror_sync_critical node port_listener protocol_listener
            virtual_hosts
        limits: delete_user_limit delete_vhost_limit list_users_limits list_vhosts_limits put_user_limit
            put_vhost_limit user_limits vhost_limits
        listeners: resume stop suspend
        marks: delete list_all put show
        overview: set_cluster_name set_limit set_log_level
        parameters: delete_global list_all list_component list_global list_vhost put_global show show_global
        places: near
        policies: show_effects show_operator_effects
        quorum: shrink
        restore: cancel
        vhosts: put_vhost start_vhost
    """,
    Folds.COUNTERS: """
        bindings: from_exchange list_all list_vhost
        clients: channel channels connection connection_channels connections user_connections vhost_channels
            vhost_connections
        definitions: export_all export_vhost
        exchanges: list_all list_vhost show
        features: list_deprecated_used
        overview: cluster_name memory node nodes overview version whoami
        places: list_all
        policies: list_all list_all_operator list_vhost list_vhost_operator show show_operator
        queues: list_all list_vhost
        quorum: critical grow rebalance
        vhosts: list_vhosts show_vhost
    """,
    Folds.CONSUMERS: """
        clients: consumers vhost_consumers
    """,
    Folds.QUEUE: """
        bindings: of_queue
        messages: delete get move remove
        queues: act declare delete pause peek purge resume show unacked
        quorum: add delete status transfer
    """,
    Folds.DESTINATION: """
        bindings: between bind show unbind
    """,
    Folds.NAMED: """
        definitions: import_all import_vhost
        evidence: list_quarantined
        exchanges: declare delete publish
        health: aliveness
        outcomes: show_biography show_changes show_depth show_last show_traces show_what_if
        past: at
        restore: post unrouted
        search: find
    """,
    Folds.IF_CHANGED: """
        features: finalize_upgrade
        parameters: delete put
        policies: delete delete_operator put put_operator
        vhosts: delete_vhost
    """,
    Folds.ALL: """
        repartition: ask show
        state: copy
    """,
}


def handlers(text: str) -> set[tuple[str, str]]:
    """The (module, name) of the handlers in a text like `module: name name`. A module may go over several lines."""
    found, module = set(), ""
    for word in text.split():
        if word.endswith(":"):
            module = word[:-1]
        else:
            found.add((module, word))
    return found


def test_b70_each_operation_says_what_is_folded_for_it() -> None:
    declared: dict[Folds, set[tuple[str, str]]] = defaultdict(set)
    for handler in {each for methods in ROUTES.values() for each in methods.values()} | set(LIVE.values()):
        operation = operation_of(handler)
        assert operation is not None, f"{handler} is not declared"
        declared[operation.folds].add((handler.__module__.rsplit(".", 1)[-1], handler.__name__))
    for folds, text in EXPECTED.items():
        assert declared[folds] == handlers(text), folds.name
    assert set(declared) <= set(EXPECTED)
