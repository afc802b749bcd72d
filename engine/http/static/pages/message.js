// The life of a message, over all queues that it came to, and the message itself: #/message/%2F/queues-0:123?queue=NAME
//
// `queue`: one of the queues of its publish; a reader who is no administrator has to name one.

import {note} from "../address.js";
import {api, where} from "../api.js";
import {figure, h, table} from "../dom.js";
import {decision, explained, messageLink, moment, queueLink, wait, what, who} from "../outcomes.js";

const BODY = 65536;  // bytes of the body that are shown

export async function show(main, [vhost, name], options) {
  const asked = new URLSearchParams({truncate: BODY, ...(options.queue ? {queue: options.queue} : {})});
  const asking = new AbortController();
  const status = h("p", {role: "status"}, "Reading the history …");
  main.append(h("h1", {}, `Message ${name}`), status);
  api(`/history/biography/${where(vhost, name)}?${asked}`, {signal: asking.signal}).then(({message, rows, complete}) => {
    status.textContent = complete ? "" : "This is not all: the time for one question was over.";
    status.after(
      h("h2", {}, "What became of it"), ends(rows, complete),
      h("h2", {}, "Its life"), life(message.message, rows),
      h("h2", {}, "The message"), facts(vhost, message), propertiesOf(message.properties),
      h("h2", {}, "Body"), bodyOf(message, options.as, as => note("message", [vhost, name], {...options, as})));
  }).catch(error => {
    if (error.name !== "AbortError") status.textContent = `Not shown: ${error.message}`;
  });
  return () => asking.abort();
}

const keyOf = row => JSON.stringify([row.partition, row.vhost, row.queue, row.queue_id, row.message_id]);

// A line for each queue that the message came to: how it left it and which rule decided that, or that it is there still.
function ends(rows, complete) {
  const last = new Map();
  for (const row of rows) {
    const key = keyOf(row);
    if (row.final || row.outcome === "refused" || row.outcome === "duplicate" || !last.get(key)?.final) {
      last.set(key, row);
    }
  }
  return h("ul", {class: "ends"}, [...last.values()].map(row => {
    const over = row.final || row.outcome === "refused" || row.outcome === "duplicate";
    const end = over ? what(row) : complete ? "still in the queue" : "its end was not found in time";
    return h("li", {}, queueLink(row.vhost, row.queue), `: ${end}`,
      over ? [" at ", moment(row.timestamp), decided(row)] : null);
  }));
}

const decided = row => decision(row) ? [". Decided by: ", h("strong", {}, decision(row))] : null;

function life(name, rows) {
  let time = null;
  return h("ol", {class: "life"}, rows.map(row => {
    const waited = time === null || row.timestamp === null ? 0 : Date.parse(row.timestamp) - time;
    if (row.timestamp !== null) time = Date.parse(row.timestamp);
    const message = `${row.partition}:${row.message_id}`;
    return h("li", {},
      waited > 0 ? h("p", {class: "quiet"}, `${wait(waited)} later`) : null,
      h("p", {},
        row.timestamp === null ? null : [moment(row.timestamp), " "],
        queueLink(row.vhost, row.queue), ": ", h("strong", {}, what(row)), who(row) && `, by ${who(row)}`, decided(row),
        message === name ? null : [". Here it is message ", messageLink(row.vhost, message)],
        ". ", queueLink(row.vhost, row.queue, {offset: row.offset, partition: row.partition}, "The queue before")));
  }));
}

function facts(vhost, message) {
  const fact = (title, ...content) => [h("dt", {}, title), h("dd", {}, ...content)];
  return h("dl", {class: "facts"},
    fact("Published", moment(message.published), ` by ${message.user ? explained(message.user, message.why) : "no user"}`),
    fact("Exchange", message.exchange === "" ? "(default)" : message.exchange),
    fact("Routing key", message.routing_key),
    fact("Queues", message.queues.flatMap(queue => [queueLink(vhost, queue), " "])),
    message.origin ? fact("Came from", source(message.origin)) : [],
    fact("Size", `${figure(message.payload_bytes)} bytes`));
}

const source = ({vhost, queue, message_id, reason}) => [
  queueLink(vhost, queue), ", message ", messageLink(vhost, String(message_id), queue), ` (${reason})`];

const shown = value => h("code", {}, typeof value === "string" ? value : JSON.stringify(value));

function propertiesOf({headers, ...properties}) {
  const rows = [...Object.entries(properties), ...Object.entries(headers ?? {}).map(([name, value]) =>
    [`header ${name}`, value])];
  if (!rows.length) return h("p", {class: "quiet"}, "It has no properties.");
  return table("Properties and headers", [
    {title: "Name", cell: ([name]) => name},
    {title: "Value", cell: ([, value]) => shown(value)},
  ], rows);
}

// The body as text, JSON or hex. `changed` is called with the way that the reader picks.
function bodyOf(message, as, changed) {
  if (message.body_gone !== null) return h("p", {}, `The body is gone: ${message.body_gone}.`);
  const withheld = message.properties.headers?.["x-withheld"];
  if (withheld && message.payload === "") return h("p", {}, `Withheld from you: ${withheld}.`);
  const bytes = bytesOf(message);
  const text = textOf(bytes, message.truncated);
  const pretty = text === null ? null : jsonOf(text);
  const ways = {text, json: pretty, hex: hexOf(bytes)};
  const content = h("pre", {class: "body", tabindex: "0", "aria-label": "Body"});
  const pick = way => { content.textContent = ways[way]; };
  const first = ways[as] == null ? (text === null ? "hex" : "text") : as;
  pick(first);
  return h("div", {},
    h("fieldset", {}, h("legend", {}, "Show it as"),
      Object.entries({text: "Text", json: "JSON", hex: "Hex"}).map(([way, title]) => h("label", {class: "way"},
        h("input", {type: "radio", name: "as", value: way, checked: way === first, disabled: ways[way] === null,
          onchange: () => { pick(way); changed(way); }}), ` ${title}`))),
    message.truncated ? h("p", {class: "quiet"}, `The first ${figure(bytes.length)} bytes of ${figure(message.payload_bytes)}.`)
      : null,
    message.payload_bytes ? content : h("p", {class: "quiet"}, "The body is empty."));
}

function bytesOf({payload, payload_encoding}) {
  if (payload_encoding === "string") return new TextEncoder().encode(payload);
  return Uint8Array.from(atob(payload), letter => letter.charCodeAt(0));
}

// The bytes as text; null if they are none. A letter that the end of a part cuts through is left out.
function textOf(bytes, part) {
  try { return new TextDecoder("utf-8", {fatal: true}).decode(bytes, {stream: part}); } catch { return null; }
}

function jsonOf(text) {
  try { return JSON.stringify(JSON.parse(text), null, 2); } catch { return null; }
}

// Lines of an offset, sixteen bytes in hex and as ASCII.
function hexOf(bytes) {
  const lines = [];
  for (let at = 0; at < bytes.length; at += 16) {
    const part = [...bytes.subarray(at, at + 16)];
    const hex = part.map(byte => byte.toString(16).padStart(2, "0")).join(" ").padEnd(47);
    const ascii = part.map(byte => byte > 31 && byte < 127 ? String.fromCharCode(byte) : ".").join("");
    lines.push(`${at.toString(16).padStart(8, "0")}  ${hex}  ${ascii}`);
  }
  return lines.join("\n");
}
