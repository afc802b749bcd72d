"""The methods of AMQP 0-9-1 with RabbitMQ's extensions: their names, and their fields in order.

A row is class.method, the name, and fields as name:domain. Bits that follow each other share an octet. The domains are
those of amqp0-9-1.extended.xml. Access.Request is in the list because old clients still send it (RabbitMQ answers with
ticket 1).
"""

from sys import intern
from typing import Final

METHODS: Final = """
    10.10  Connection.Start           version_major:octet version_minor:octet server_properties:table
                                      mechanisms:longstr locales:longstr
    10.11  Connection.StartOk         client_properties:table mechanism:shortstr response:longstr locale:shortstr
    10.20  Connection.Secure          challenge:longstr
    10.21  Connection.SecureOk        response:longstr
    10.30  Connection.Tune            channel_max:short frame_max:long heartbeat:short
    10.31  Connection.TuneOk          channel_max:short frame_max:long heartbeat:short
    10.40  Connection.Open            virtual_host:shortstr capabilities:shortstr insist:bit
    10.41  Connection.OpenOk          known_hosts:shortstr
    10.50  Connection.Close           reply_code:short reply_text:shortstr class_id:short method_id:short
    10.51  Connection.CloseOk
    10.60  Connection.Blocked         reason:shortstr
    10.61  Connection.Unblocked
    10.70  Connection.UpdateSecret    new_secret:longstr reason:shortstr
    10.71  Connection.UpdateSecretOk
    20.10  Channel.Open               out_of_band:shortstr
    20.11  Channel.OpenOk             channel_id:longstr
    20.20  Channel.Flow               active:bit
    20.21  Channel.FlowOk             active:bit
    20.40  Channel.Close              reply_code:short reply_text:shortstr class_id:short method_id:short
    20.41  Channel.CloseOk
    30.10  Access.Request             realm:shortstr exclusive:bit passive:bit active:bit write:bit read:bit
    30.11  Access.RequestOk           ticket:short
    40.10  Exchange.Declare           ticket:short exchange:shortstr exchange_type:shortstr passive:bit durable:bit
                                      auto_delete:bit internal:bit nowait:bit arguments:table
    40.11  Exchange.DeclareOk
    40.20  Exchange.Delete            ticket:short exchange:shortstr if_unused:bit nowait:bit
    40.21  Exchange.DeleteOk
    40.30  Exchange.Bind              ticket:short destination:shortstr source:shortstr routing_key:shortstr
                                      nowait:bit arguments:table
    40.31  Exchange.BindOk
    40.40  Exchange.Unbind            ticket:short destination:shortstr source:shortstr routing_key:shortstr
                                      nowait:bit arguments:table
    40.51  Exchange.UnbindOk
    50.10  Queue.Declare              ticket:short queue:shortstr passive:bit durable:bit exclusive:bit
                                      auto_delete:bit nowait:bit arguments:table
    50.11  Queue.DeclareOk            queue:shortstr message_count:long consumer_count:long
    50.20  Queue.Bind                 ticket:short queue:shortstr exchange:shortstr routing_key:shortstr nowait:bit
                                      arguments:table
    50.21  Queue.BindOk
    50.30  Queue.Purge                ticket:short queue:shortstr nowait:bit
    50.31  Queue.PurgeOk              message_count:long
    50.40  Queue.Delete               ticket:short queue:shortstr if_unused:bit if_empty:bit nowait:bit
    50.41  Queue.DeleteOk             message_count:long
    50.50  Queue.Unbind               ticket:short queue:shortstr exchange:shortstr routing_key:shortstr
                                      arguments:table
    50.51  Queue.UnbindOk
    60.10  Basic.Qos                  prefetch_size:long prefetch_count:short global_:bit
    60.11  Basic.QosOk
    60.20  Basic.Consume              ticket:short queue:shortstr consumer_tag:shortstr no_local:bit no_ack:bit
                                      exclusive:bit nowait:bit arguments:table
    60.21  Basic.ConsumeOk            consumer_tag:shortstr
    60.30  Basic.Cancel               consumer_tag:shortstr nowait:bit
    60.31  Basic.CancelOk             consumer_tag:shortstr
    60.40  Basic.Publish              ticket:short exchange:shortstr routing_key:shortstr mandatory:bit immediate:bit
    60.50  Basic.Return               reply_code:short reply_text:shortstr exchange:shortstr routing_key:shortstr
    60.60  Basic.Deliver              consumer_tag:shortstr delivery_tag:longlong redelivered:bit exchange:shortstr
                                      routing_key:shortstr
    60.70  Basic.Get                  ticket:short queue:shortstr no_ack:bit
    60.71  Basic.GetOk                delivery_tag:longlong redelivered:bit exchange:shortstr routing_key:shortstr
                                      message_count:long
    60.72  Basic.GetEmpty             cluster_id:shortstr
    60.80  Basic.Ack                  delivery_tag:longlong multiple:bit
    60.90  Basic.Reject               delivery_tag:longlong requeue:bit
    60.100 Basic.RecoverAsync         requeue:bit
    60.110 Basic.Recover              requeue:bit
    60.111 Basic.RecoverOk
    60.120 Basic.Nack                 delivery_tag:longlong multiple:bit requeue:bit
    85.10  Confirm.Select             nowait:bit
    85.11  Confirm.SelectOk
    90.10  Tx.Select
    90.11  Tx.SelectOk
    90.20  Tx.Commit
    90.21  Tx.CommitOk
    90.30  Tx.Rollback
    90.31  Tx.RollbackOk
"""

# One method: its name ("Queue.Declare"), its fields in order with their domains (shortstr, bit, table ...).
Definition = tuple[str, tuple[tuple[str, str], ...]]


def _definitions() -> dict[int, Definition]:
    found: dict[int, Definition] = {}
    index, name = 0, ""
    for word in METHODS.split():
        field, _, domain = word.partition(":")
        if domain:
            found[index] = (name, (*found[index][1], (intern(field), intern(domain))))
        elif word[0].isdigit():
            class_id, _, method_id = word.partition(".")
            index = int(class_id) << 16 | int(method_id)
        else:
            name = word
            found[index] = (name, ())
    return found


DEFINITIONS: Final = _definitions()
INDEXES: Final = {name: index for index, (name, _) in DEFINITIONS.items()}
