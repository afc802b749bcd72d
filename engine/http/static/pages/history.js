// Who did what: the last outcomes in a queue, the newest first: #/history/%2F/orders?tail=100&until=2026-11-23T10:00:00Z

import {address} from "../address.js";
import {api, where} from "../api.js";
import {h, table} from "../dom.js";
import {before, decision, filled, messageLink, moment, queueLink, what, who} from "../outcomes.js";

const TAILS = ["100", "1000", "10000"];
const AGO = /^(\d+[smhdw])+$/;  // 2h; the API reads -2h

export async function show(main, [vhost, queue], options, user) {
  const tail = options.tail ?? TAILS[0];
  const asking = new AbortController();
  const only = user.tags.includes("administrator") ? null : queue;
  const status = h("p", {role: "status"}, "Reading the history …");
  main.append(h("h1", {}, "Who did what in ", queueLink(vhost, queue)), formOf(vhost, queue, tail, options.until), status);
  const until = AGO.test(options.until ?? "") ? "-" + options.until : options.until;
  const asked = new URLSearchParams({tail, ...(until ? {until} : {})});
  api(`/history/outcomes/${where(vhost, queue)}?${asked}`, {signal: asking.signal}).then(({rows, complete}) => {
    const newest = rows.toReversed();
    const all = complete && rows.length < Number(tail);
    status.textContent = rows.length === 0 ? "Nothing happened in this queue."
      : all ? "This is all that happened in this queue." : complete ? "" : "Not all: the time for one question was over.";
    if (rows.length === 0) return;
    main.append(table(`${rows.length} outcomes, the newest first`, columns(vhost, only), newest));
    if (rows.length >= Number(tail)) main.append(older(vhost, queue, tail, newest));
  }).catch(error => {
    if (error.name !== "AbortError") status.textContent = `Not shown: ${error.message}`;
  });
  return () => asking.abort();
}

const columns = (vhost, only) => [
  {title: "Time", cell: row => queueLink(row.vhost, row.queue, {time: row.timestamp}, moment(row.timestamp))},
  {title: "Message", cell: row => row.message_id === null ? "" : messageLink(vhost, `${row.partition}:${row.message_id}`, only)},
  {title: "What happened", cell: row => what(row)},
  {title: "Decided by", cell: row => decision(row)},
  {title: "Who", cell: row => who(row)},
];

function formOf(vhost, queue, tail, until) {
  const form = h("form", {class: "row", "aria-label": "Outcomes", onsubmit: event => {
    event.preventDefault();
    location.hash = address("history", [vhost, queue], filled(Object.fromEntries(new FormData(form))));
  }},
  h("label", {class: "field"}, "Outcomes", h("select", {name: "tail"},
    [...new Set([...TAILS, tail])].map(each => h("option", {selected: each === tail}, each)))),
  h("label", {class: "field"}, "Until",
    h("input", {name: "until", value: until, placeholder: "now; or 2h, or 2026-11-23T10:00:00Z", autocomplete: "off"})),
  h("button", {type: "submit"}, "Show"));
  return form;
}

// A link to the outcomes before these. Those of the oldest millisecond may not all be here, so it is shown again,
// unless it is the only one: then it has more outcomes than this page, and a larger page shows more of them.
function older(vhost, queue, tail, newest) {
  const oldest = newest.at(-1).timestamp;
  const one = oldest === newest[0].timestamp;
  const link = (text, options) => h("a", {href: address("history", [vhost, queue], options)}, text);
  const larger = TAILS.find(each => Number(each) > Number(tail));
  return h("p", {},
    one && larger ? [link("More of this millisecond", {tail: larger, until: oldest}), " · "] : null,
    link("Older", {tail, until: one ? before(oldest) : oldest}));
}
