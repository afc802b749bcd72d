// Finds messages of the history by what is in them: #/find?vhost=/&queue=orders&message_id=4711
//
// An answer of the API has the matches of about a second, and `next`: the page asks again with it, until it is null,
// the reader stops it, or PAUSE messages more are shown. The search is in the address, so a link repeats it.

import {note} from "../address.js";
import {api, where} from "../api.js";
import {figure, h, table} from "../dom.js";
import {filled, messageLink, moment, queueLink} from "../outcomes.js";

const PAUSE = 500;  // messages shown before the reader is asked whether to go on
const BODY = 200;  // bytes of a body, and letters of properties, in the list
const AGO = /^(\d+[smhdw])+$/;  // 2h; the API reads -2h

const COLUMNS = (vhost, only) => [
  {title: "Message", cell: each => messageLink(vhost, each.message, only)},
  {title: "Published", cell: each => moment(each.published)},
  {title: "Queues", cell: each => each.queues.flatMap(queue => [queueLink(vhost, queue), " "])},
  {title: "By", cell: each => each.origin ? `${each.origin.reason}, from ${each.origin.queue || "no queue"}` : each.user},
  {title: "Exchange, routing key", cell: each => `${each.exchange || "(default)"}, ${each.routing_key}`},
  {title: "Properties", cell: each => h("code", {}, properties(each.properties))},
  {title: "Body", cell: each => h("code", {}, body(each))},
];

function properties({message_id, correlation_id, headers}) {
  const shown = [["message_id", message_id], ["correlation_id", correlation_id], ...Object.entries(headers ?? {})];
  const text = shown.filter(([, value]) => value !== undefined)
    .map(([name, value]) => `${name}=${typeof value === "string" ? value : JSON.stringify(value)}`).join(" ");
  return text.length > BODY ? text.slice(0, BODY) + "…" : text;
}

const body = each => each.payload + (each.payload_encoding === "base64" ? " (base64)" : "")
  + (each.payload_bytes > BODY ? "…" : "");

export async function show(main, names, options, user) {
  const administrator = user.tags.includes("administrator");
  const form = formOf(options, administrator);
  const status = h("p", {role: "status"});
  const progress = h("progress", {hidden: true, "aria-label": "Searched so far"});
  const stop = h("button", {type: "button", disabled: true, onclick: () => search?.stop()}, "Stop");
  const on = h("button", {type: "button", hidden: true, onclick: () => search?.go()}, "Go on");
  const results = h("section", {"aria-label": "Messages that match"});
  const view = {status, progress, stop, on, results};
  let search = null;

  function begin(wanted) {
    search?.replace();
    search = new Search(wanted, administrator, view);
    search.go();
  }
  form.addEventListener("submit", event => {
    event.preventDefault();
    const wanted = wantedBy(form);
    note("find", [], wanted);
    begin(wanted);
  });
  form.append(h("div", {class: "row"}, h("button", {type: "submit"}, "Find"), stop, on));
  main.append(h("h1", {}, "Find"), form, progress, status, results);
  if (["message_id", "correlation_id", "header", "body", "unrouted"].some(name => options[name])) begin(wantedBy(form));
  api("/vhosts").then(vhosts => form.elements.vhost.append(...vhosts.map(each => each.name)
    .filter(name => name !== form.elements.vhost.value).map(name => h("option", {value: name}, name)))).catch(error => {
    if (!status.textContent) status.textContent = `The other vhosts are not known: ${error.message}`;
  });
  return () => search?.replace();
}

function formOf(options, administrator) {
  const [name, ...value] = (options.header ?? "").split("=");
  const field = (title, id, text, more = {}) => h("label", {class: "field"}, title,
    h("input", {name: id, value: text, autocomplete: "off", ...more}));
  return h("form", {class: "fields", "aria-label": "Search"},
    h("label", {class: "field"}, "Vhost", h("select", {name: "vhost"}, 
      h("option", {value: options.vhost ?? "/"}, options.vhost ?? "/"))),
    field(administrator ? "Queue (empty: all)" : "Queue", "queue", options.queue, {required: !administrator}),
    field("Message id", "message_id", options.message_id),
    field("Correlation id", "correlation_id", options.correlation_id),
    field("Header", "header_name", name, {placeholder: "customer"}),
    field("Value of the header", "header_value", value.join("="), {placeholder: "alice"}),
    field("Text in the body", "body", options.body),
    field("Published since", "since", options.since, {placeholder: "2h, or 2026-11-23T10:00:00Z"}),
    field("Published until", "until", options.until, {placeholder: "now"}),
    administrator ? h("label", {class: "field"}, "Only unrouted messages",
      h("input", {name: "unrouted", type: "checkbox", value: "true", checked: options.unrouted === "true"})) : null);
}

// The search that the form says, as options of the address.
function wantedBy(form) {
  const {header_name, header_value, ...given} = Object.fromEntries(new FormData(form));
  return filled({...given, header: header_name || header_value ? `${header_name}=${header_value}` : ""});
}

class Search {
  constructor(wanted, administrator, view) {
    this.wanted = wanted;
    this.view = view;
    this.begun = new Date();
    this.next = null;
    this.found = this.searched = 0;
    this.columns = COLUMNS(wanted.vhost, administrator ? null : wanted.queue ?? null);
    view.results.replaceChildren();
    view.progress.value = 0;
  }

  // Searches until the end, a stop or a pause.
  async go() {
    const {status, progress, stop, on} = this.view;
    this.asking = new AbortController();
    stop.disabled = progress.hidden = false;
    on.hidden = true;
    const pause = this.found + PAUSE;
    let left = null;
    try {
      do {
        status.textContent = this.told("Searching", left);
        const answer = await api(this.question(), {signal: this.asking.signal});
        this.asking.signal.throwIfAborted();
        this.searched += answer.searched;
        this.next = answer.next;
        left = answer.left;
        progress.max = Math.max(1, this.searched + left);
        progress.value = this.searched;
        this.add(answer.messages);
      } while (this.next !== null && this.found < pause);
      status.textContent = this.next === null ? this.ended() : this.told("Paused", left);
      on.hidden = this.next === null;
    } catch (error) {
      if (this.replaced) return;
      const stopped = error.name === "AbortError";
      status.textContent = stopped ? this.told("Stopped", left) : `Not searched: ${error.message}`;
      on.hidden = !stopped && this.next === null;
    }
    progress.hidden = stop.disabled = true;
  }

  stop() {
    this.asking.abort();
  }

  // Stops for good: what is shown belongs to another search from now on.
  replace() {
    this.replaced = true;
    this.stop();
  }

  question() {
    const {vhost, queue, ...asked} = this.wanted;
    for (const name of ["since", "until"]) if (AGO.test(asked[name] ?? "")) asked[name] = "-" + asked[name];
    const query = new URLSearchParams({...asked, truncate: BODY, ...(this.next === null ? {} : {next: this.next})});
    return `/history/find/${where(vhost, ...(queue ? [queue] : []))}?${query}`;
  }

  add(messages) {
    if (!messages.length) return;
    const rows = table("Newest first, as they are found", this.columns, messages);
    const body = this.view.results.querySelector("tbody");
    if (body) body.append(...rows.querySelectorAll("tbody tr"));
    else this.view.results.append(rows);
    this.found += messages.length;
  }

  told(state, left) {
    const todo = left === null ? "" : `, ${figure(left)} are left`;
    return `${state}: ${figure(this.found)} found, ${figure(this.searched)} records searched${todo}.`;
  }

  ended() {
    const {vhost, queue, until} = this.wanted;
    const place = queue ? `queue ${queue} of vhost ${vhost}` : `vhost ${vhost}`;
    const time = until ?? this.begun.toISOString();
    const found = this.found ? `${figure(this.found)} found` : "Nothing found";
    return `${found} in ${place} until ${time}: ${figure(this.searched)} records searched.`;
  }
}
