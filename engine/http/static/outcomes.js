// Words and links for outcomes of the history: what happened to a message, who did it, and which rule decided.
//
// `row`: a row of GET api/history/..., whose columns are those of Spark's table HISTORY.

import {address} from "./address.js";
import {h} from "./dom.js";

// How a message left a queue where no rule decided it: the decision was a person's or a client's.
const DECIDED = {
  acked: "the consumer acknowledged it",
  delivered: "it was taken without acknowledgement",
  rejected: "the consumer rejected it",
  purged: "the queue was purged",
  removed: "a user removed it",
  moved: "a user moved it",
  relocated: "its queue moved to another partition",
  deleted: "the queue was deleted",
  delayed: "its delay was over",
  transient: "it was not persistent, and the broker restarted",
};

const WORDS = {
  refused: "refused by the queue",
  duplicate: "dropped: the queue had taken it before",
  acked: "acknowledged",
  rejected: "rejected",
  expired: "expired",
  maxlen: "dropped by a length limit",
  delivery_limit: "dropped after too many deliveries",
  purged: "purged",
  removed: "removed",
  relocated: "went to another partition, with its queue",
  deleted: "deleted with its queue",
  delayed: "left the delayed exchange",
  transient: "lost at a restart of the broker",
  postponed: "put back for a later delivery",
  queue_gone: "the queue is gone",
  consumer_cancelled: "consumer cancelled",
  quarantined: "an event that makes no sense",
};

// What happened, as text.
export function what(row) {
  const of = row.consumer == null ? "" : ` consumer ${row.consumer}`;
  switch (row.outcome) {
    case "published": return row.origin ? came(row.origin) : `published${way(row)}`;
    case "delivered": return (row.reason === "get" ? "fetched by a get" : `delivered to${of || " a consumer"}`)
      + (row.final ? ", without acknowledgement" : "")
      + (row.redelivered ? ` again (delivered before: ${row.delivery_count ?? "?"})` : "");
    case "requeued": return `requeued${of && " from" + of}${because(row)}`;
    case "moved": return `moved${way(row)}${because(row)}`;
    case "dead_lettered": return `dead-lettered${because(row)}${way(row)}`;
    default: return (WORDS[row.outcome] ?? row.outcome) + because(row);
  }
}

const because = row => row.reason ? ` (${row.reason})` : "";

function way(row) {
  if (row.exchange == null) return "";
  return ` through ${row.exchange === "" ? "the default exchange" : `exchange ${row.exchange}`}`
    + (row.routing_key == null ? "" : `, routing key ${row.routing_key}`);
}

function came(origin) {
  const from = `${origin.queue ? `queue ${origin.queue}` : "no queue"}, message ${origin.message_id}`;
  if (origin.reason === "relocated") return `came here with its queue, as message ${origin.message_id} of its old partition`;
  if (origin.reason === "moved") return `moved here from ${from}`;
  return origin.reason === "restored" ? `restored from ${from}` : `came as a dead letter (${origin.reason}) of ${from}`;
}

// The rule that decided it, or the decision of a person or a client; "" where nothing had to be decided.
export const decision = row => row.rule || (row.final ? DECIDED[row.outcome] ?? "" : "");

// Who did it and why, as text: a user, or the broker and the event. "" for a delivery, and where a rule decided.
export function who(row) {
  if (row.rule || (row.outcome === "delivered" && row.reason !== "get")) return "";
  if (row.user) return explained(row.user, row.why);
  return row.event === null ? "the broker, as time passed" : `the broker (${row.event})`;
}

// A user with the reason that it gave.
export const explained = (user, why) => why ? `${user} (${why})` : user;

// Links to the life of a message. `queue`: the one that the reader may read, where that matters.
export const messageLink = (vhost, message, queue = null) =>
  h("a", {href: address("message", [vhost, message], {queue})}, message);

// A link to a queue; with a time or an offset of its partition, as it was then.
export const queueLink = (vhost, queue, at = {}, text = queue) =>
  h("a", {href: address("queues", [vhost, queue], at)}, text);

// The moment before a time of the API, a millisecond earlier.
export const before = time => new Date(Date.parse(time) - 1).toISOString();

// A time of the API as people read it, and exactly for machines.
export const moment = time => h("time", {datetime: time}, time.replace("T", " ").replace("+00:00", " UTC"));

const UNITS = [["day", 86400000], ["hour", 3600000], ["minute", 60000], ["second", 1000]];

// Milliseconds in words, in the two largest units: "2 hours 5 minutes".
export function wait(ms) {
  if (ms < 1000) return counted(ms, "millisecond");
  const words = [];
  for (const [unit, length] of UNITS) {
    const count = Math.floor(ms / length);
    ms -= count * length;
    if (count) words.push(counted(count, unit));
    if (words.length === 2 || (words.length && !count)) break;
  }
  return words.join(" ");
}

const counted = (count, unit) => `${count} ${unit}${count === 1 ? "" : "s"}`;

// Parts of an address of which none is empty: options that are "" are left out, as those that are null are.
export const filled = options => Object.fromEntries(Object.entries(options).filter(([, value]) => value !== ""));
