// The lists of the desk.

import {address} from "../address.js";
import {where} from "../api.js";
import {code, figure, h} from "../dom.js";
import {object, view} from "./list.js";

const text = (title, field, sort = field) => ({title, sort, cell: row => String(row[field] ?? "")});
const number = (title, field) => ({title, sort: field, number: true, cell: row => figure(row[field])});
const json = (title, field) => ({title, cell: row => code(row[field])});
const VHOST = {name: "vhost", title: "Vhost", value: "/", required: true};
const NAME = {name: "name", title: "Name", required: true};
const ARGUMENTS = {name: "arguments", title: "Arguments (JSON)", value: "{}"};
const DURABLE = {name: "durable", title: "Durable", choices: ["true", "false"]};
// Counters of another node's that are older than usual: they come every five seconds.
const OLD_MS = 20000;
const state = row => row.counters_age_ms > OLD_MS
  ? h("span", {title: "The figures are those that the owner of the partition published last"},
    `${row.state}, figures of ${figure(Math.round(row.counters_age_ms / 1000))} s ago`) : String(row.state ?? "");
const named = row => `${row.name} in vhost ${row.vhost}`;

export const queues = view("queues", {
  title: "Queues", path: "/queues", filter: true, live: true,
  asked: "name,vhost,type,state,policy,messages_ready,messages_unacknowledged,consumers,arguments,effective_policy_definition,counters_age_ms",
  columns: [
    text("Vhost", "vhost"),
    {title: "Name", sort: "name", cell: row => h("a", {href: address("queues", [row.vhost, row.name])}, row.name)},
    text("Type", "type"), {title: "State", sort: "state", cell: state}, text("Policy", "policy"),
    {title: "Arguments and effective policy", cell: row => code({...row.arguments, ...row.effective_policy_definition})},
    number("Ready", "messages_ready"), number("Unacked", "messages_unacknowledged"), number("Consumers", "consumers")],
  one: named, remove: row => "/queues/" + where(row.vhost, row.name),
  form: {title: "Declare a queue", fields: [VHOST, NAME,
    {name: "type", title: "Type", choices: ["classic", "quorum", "stream"]}, DURABLE, ARGUMENTS],
    send: ({vhost, name, type, durable, arguments: given}) => ["/queues/" + where(vhost, name), "PUT",
      {durable: durable === "true", arguments: {"x-queue-type": type, ...object(given, "Arguments")}}]},
});

export const exchanges = view("exchanges", {
  title: "Exchanges", path: "/exchanges", filter: true,
  columns: [text("Vhost", "vhost"), {title: "Name", sort: "name", cell: row => row.name || "(default)"}, text("Type", "type"),
    text("Durable", "durable"), text("Policy", "policy"), json("Arguments", "arguments")],
  one: named, remove: row => row.name && !row.name.startsWith("amq.") && "/exchanges/" + where(row.vhost, row.name),
  form: {title: "Declare an exchange", fields: [VHOST, NAME,
    {name: "type", title: "Type", choices: ["direct", "fanout", "topic", "headers"]}, DURABLE, ARGUMENTS],
    send: ({vhost, name, type, durable, arguments: given}) => ["/exchanges/" + where(vhost, name), "PUT",
      {type, durable: durable === "true", arguments: object(given, "Arguments")}]},
});

const kind = row => row.destination_type === "queue" ? "q" : "e";
export const bindings = view("bindings", {
  title: "Bindings", path: "/bindings",
  columns: [text("Vhost", "vhost"), {title: "From exchange", sort: "source", cell: row => row.source || "(default)"},
    text("To", "destination"), text("Kind", "destination_type"), text("Routing key", "routing_key"), json("Arguments", "arguments")],
  one: row => `binding of ${row.destination} to ${row.source} with ${row.routing_key}`,
  remove: row => row.source &&
    `/bindings/${where(row.vhost)}/e/${where(row.source)}/${kind(row)}/${where(row.destination, row.properties_key)}`,
  form: {title: "Bind", fields: [VHOST, {name: "source", title: "From exchange", required: true},
    {name: "to", title: "To", choices: ["queue", "exchange"]}, {name: "destination", title: "Destination", required: true},
    {name: "key", title: "Routing key"}, ARGUMENTS],
    send: ({vhost, source, to, destination, key, arguments: given}) =>
      [`/bindings/${where(vhost)}/e/${where(source)}/${to[0]}/${where(destination)}`, "POST",
        {routing_key: key, arguments: object(given, "Arguments")}]},
});

export const connections = view("connections", {
  title: "Connections", path: "/connections", filter: true,
  columns: [text("Name", "name"), text("User", "user"), text("Vhost", "vhost"), text("State", "state"),
    text("Protocol", "protocol"), text("Node", "node"), number("Channels", "channels")],
  one: row => row.name, remove: row => "/connections/" + where(row.name),
});

export const channels = view("channels", {
  title: "Channels", path: "/channels", filter: true,
  columns: [text("Name", "name"), text("User", "user"), text("Vhost", "vhost"), text("Confirms", "confirm"),
    number("Prefetch", "prefetch_count"), number("Unacked", "messages_unacknowledged"), number("Consumers", "consumer_count")],
});

export const consumers = view("consumers", {
  title: "Consumers", path: "/consumers",
  columns: [{title: "Queue", cell: row => h("a", {href: address("queues", [row.queue.vhost, row.queue.name])}, row.queue.name)},
    {title: "Vhost", cell: row => row.queue.vhost}, text("Tag", "consumer_tag"), {title: "Channel", cell: row => row.channel_details?.name},
    text("Acks", "ack_required"), number("Prefetch", "prefetch_count"), text("Status", "activity_status")],
});

export const users = view("users", {
  title: "Users", path: "/users", filter: true, asked: "name,tags,limits",
  columns: [text("Name", "name"), {title: "Tags", cell: row => (row.tags ?? []).join(", ")}, json("Limits", "limits")],
  one: row => `user ${row.name}`, remove: row => "/users/" + where(row.name),
  form: {title: "Add or change a user", fields: [NAME,
    {name: "password", title: "Password", kind: "password", required: true}, {name: "tags", title: "Tags"}],
    send: ({name, password, tags}) => ["/users/" + where(name), "PUT", {password, tags}]},
});

export const permissions = view("permissions", {
  title: "Permissions", path: "/permissions",
  columns: [text("User", "user"), text("Vhost", "vhost"), text("Configure", "configure"), text("Write", "write"), text("Read", "read")],
  one: row => `permissions of ${row.user} in vhost ${row.vhost}`, remove: row => "/permissions/" + where(row.vhost, row.user),
  form: {title: "Set permissions", fields: [{name: "user", title: "User", required: true}, VHOST,
    ...["Configure", "Write", "Read"].map(each => ({name: each.toLowerCase(), title: each, value: ".*"}))],
    send: ({user, vhost, ...patterns}) => ["/permissions/" + where(vhost, user), "PUT", patterns]},
});

export const topicPermissions = view("topic-permissions", {
  title: "Topic permissions", path: "/topic-permissions", about: "Routing keys that a user may publish or bind with at a topic exchange.",
  columns: [text("User", "user"), text("Vhost", "vhost"), text("Exchange", "exchange"), text("Write", "write"), text("Read", "read")],
  one: row => `topic permissions of ${row.user} for ${row.exchange} in vhost ${row.vhost}`,
  remove: row => "/topic-permissions/" + where(row.vhost, row.user, row.exchange),
  form: {title: "Set topic permissions", fields: [{name: "user", title: "User", required: true}, VHOST,
    {name: "exchange", title: "Exchange", required: true},
    ...["Write", "Read"].map(each => ({name: each.toLowerCase(), title: each, value: ".*"}))],
    send: ({user, vhost, ...patterns}) => ["/topic-permissions/" + where(vhost, user), "PUT", patterns]},
});

// Limits of vhosts or of users: `owner` is "vhost" or "user".
const limits = (owner, title, names) => view(`${owner}-limits`, {
  title: `Limits of ${title}`, path: `/${owner}-limits`, about: "A limit of -1 is no limit.",
  columns: [text(title[0].toUpperCase() + title.slice(1, -1), owner), json("Limits", "value")],
  form: {title: "Set a limit", fields: [{name: "owner", title: title[0].toUpperCase() + title.slice(1, -1), required: true},
    {name: "limit", title: "Limit", choices: names}, {name: "value", title: "Value", kind: "number", required: true}],
    send: ({owner: name, limit, value}) => [`/${owner}-limits/` + where(name, limit), "PUT", {value: Number(value)}]},
});
export const vhostLimits = limits("vhost", "vhosts", ["max-connections", "max-queues"]);
export const userLimits = limits("user", "users", ["max-connections", "max-channels"]);

export const vhosts = view("vhosts", {
  title: "Vhosts", path: "/vhosts", filter: true,
  columns: [text("Name", "name"), text("Description", "description"), number("Ready", "messages_ready"), number("Unacked", "messages_unacknowledged")],
  one: row => `vhost ${row.name} with all its queues`, remove: row => "/vhosts/" + where(row.name),
  form: {title: "Add a vhost", fields: [NAME, {name: "description", title: "Description"}],
    send: ({name, description}) => ["/vhosts/" + where(name), "PUT", {description}]},
});

export const quarantine = view("quarantine", {
  title: "Quarantine", path: "/quarantine",
  about: "Records of the log that make no sense. They change nothing.",
  columns: [text("Partition", "partition"), number("Offset", "offset"), text("Event", "event"), text("Reason", "reason")],
});

export const erasures = view("erasures", {
  title: "Erasures", path: "/erasures", about: "Subjects whose keys were destroyed.",
  columns: [text("Subject", "subject"), text("Time", "time"), text("By", "user"), text("Reason", "reason")],
});

export const expiredBodies = view("expired-bodies", {
  title: "Expired bodies", path: "/expired-bodies",
  about: "Days of messages. The bodies of an expired day can't be read any more. A queue holds back the days of its messages.",
  columns: [text("Day", "day"), text("State", "state"), number("Keys", "keys"), text("Time", "time"), {title: "Held back by",
    cell: row => row.queues.map(each => `${figure(each.messages)} in ${each.queue} of ${each.vhost}`).join(", ")}],
});

export const nodes = view("nodes", {
  title: "Nodes", path: "/nodes",
  columns: [text("Name", "name"), text("Running", "running"), number("Uptime (ms)", "uptime"), number("Memory used", "mem_used"),
    number("Memory limit", "mem_limit"), number("Disk free", "disk_free"), number("Disk limit", "disk_free_limit"),
    number("Files open", "fd_used"), number("Sockets", "sockets_used")],
});
