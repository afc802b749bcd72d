// Messages of a queue at a moment, as a table whose bodies are text, JSON or hex.

import {address} from "../address.js";
import {code, figure, h, table} from "../dom.js";

// The table of an answer of /api/queues/VHOST/QUEUE/at. `form`: text, JSON or hex. `handle`: the buttons of a message.
export function messages(past, form, handle) {
  const link = each => h("a", {href: address("message", [past.vhost, `${past.at.partition}:${each.message_id}`],
    {queue: past.name})}, String(each.message_id));
  return table(`Messages of ${past.name} at ${past.at.time}`, [
    {title: "Message", cell: link},
    {title: "State", cell: each => each.state},
    {title: "Published", cell: each => each.published},
    {title: "Routing key", cell: each => each.routing_key},
    {title: "Properties", cell: each => code(each.properties)},
    {title: "Bytes", number: true, cell: each => figure(each.payload_bytes)},
    {title: "Body", cell: each => h("pre", {}, body(each, form))},
    {title: "Change", cell: each => handle(each, past.at.partition)},
  ], past.message_details);
}

// The body as text. Bytes that are no text are shown as hex in each form.
export function body({payload, payload_encoding: encoding}, form) {
  if (encoding !== "string") return hex(Uint8Array.from(atob(payload), letter => letter.charCodeAt(0)));
  if (form === "hex") return hex(new TextEncoder().encode(payload));
  if (form === "text") return payload;
  try { return JSON.stringify(JSON.parse(payload), null, 2); } catch { return payload; }
}

function hex(bytes) {
  return Array.from(bytes, byte => byte.toString(16).padStart(2, "0")).join(" ");
}
