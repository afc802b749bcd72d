// A queue: what it is now, its length over time, its messages at a moment, and what can be undone.
//
// The moment is in the address (time or offset), so a link opens it. While the reader drags, one question is under way,
// and the last position is asked for next; a question that takes long is given up for it. Until its answer is there, the
// page says what the chart knows.

import {address, note} from "../address.js";
import {api, where} from "../api.js";
import {chart, inWords, left} from "../chart.js";
import {code, figure, h, table} from "../dom.js";
import {live} from "../live.js";
import {comparing, handling, labelled, marking, pausing, purging, restoring, trying} from "./queue_changes.js";
import {messages} from "./queue_messages.js";

const PATIENCE_MS = 1_000, GUESS_MS = 150, COUNT = 20;
const SHOWN = "type,state,durable,messages_ready,messages_unacknowledged,consumers,policy,operator_policy,arguments";
const RANGES = [["-10m", "10 minutes"], ["-1h", "hour"], ["-6h", "6 hours"], ["-1d", "day"], ["-7d", "week"],
  ["0", "whole history"]];

export async function show(main, names, options, user) {
  const ending = new AbortController();
  const facts = h("div", {}), drawn = h("div", {}), found = h("div", {}), said = h("p", {role: "status"});
  const asked = h("div", {role: "status"}), pause = pausing(names, () => changed());
  const handle = handling(names, asked, () => { changed(); choose({time: "-0s"}, first); });
  const range = h("select", {onchange: () => draw()}, RANGES.map(([value, text]) =>
    h("option", {value, selected: value === (options.range ?? "-1h")}, text)));
  const form = h("select", {onchange: () => list()}, ["text", "JSON", "hex"].map(each => h("option", {}, each)));
  const typed = h("input", {placeholder: "2026-11-23T10:00:00Z, 10m, mark:NAME, or an offset", size: 34});
  const opened = new Set();  // parts that the reader opened stay open when they are drawn anew
  let charted = null, drawing = 0, wanted = null, underWay = null, past = null, hand = () => {}, first = Number(options.first) || 0;

  // -- now ------------------------------------------------------------------------------------------------------------

  function showNow(queue) {
    pause.show(queue);
    facts.replaceChildren(table("Now", [
      {title: "Type", cell: each => each.type},
      {title: "State", cell: each => each.state === "paused" ? h("strong", {class: "error"}, "paused") : each.state},
      {title: "Durable", cell: each => each.durable ? "yes" : "no"},
      {title: "Ready", number: true, cell: each => figure(each.messages_ready)},
      {title: "Unacked", number: true, cell: each => figure(each.messages_unacknowledged)},
      {title: "Consumers", number: true, cell: each => figure(each.consumers)},
      {title: "Policy", cell: each => [each.policy, each.operator_policy].filter(name => name).join(", ")},
      {title: "Arguments", cell: each => code(each.arguments)}], [queue]));
  }

  const fail = error => facts.replaceChildren(h("p", {class: "error"}, `Now: ${error.message}`));

  // -- over time ------------------------------------------------------------------------------------------------------

  async function draw() {
    keep();
    const number = ++drawing;
    try {
      const query = new URLSearchParams({from: range.value});
      const depth = await api(`/history/depth/${where(...names)}?${query}`, {signal: ending.signal});
      if (number !== drawing) return;  // a later question may be answered before this one
      const made = chart(depth, `Moment in the history of ${names[1]}`,
        time => choose({time: new Date(time).toISOString()}));
      hand = made.show;
      charted = depth;
      drawn.replaceChildren(made.element,
        h("p", {class: "quiet"}, `${depth.from.time} to ${depth.to.time}; below: published, and left.`,
          depth.floor === null ? "" : ` The history begins at offset ${depth.floor}.`,
          depth.complete ? "" : " The time for an answer was over before its end."),
        ticks(depth), numbers(depth));
      if (past) hand(Date.parse(past.at.time));
    } catch (error) {
      if (error.name !== "AbortError" && number === drawing) {
        drawn.replaceChildren(h("p", {class: "error"}, error.message));
      }
    }
  }

  function part(title, name, content) {
    const remember = event => event.target.open ? opened.add(name) : opened.delete(name);
    return h("details", {open: opened.has(name), ontoggle: remember}, h("summary", {}, title), content);
  }

  function ticks(depth) {
    if (!depth.ticks.length) return "";
    return part(`Events (${figure(depth.ticks.length + depth.more_ticks)})`, "events",
      table("Purges, policies, restarts, marks and restorations", [
        {title: "Time", cell: each => each.time},
        {title: "Event", cell: each => inWords(each)},
        {title: "Queue", cell: each => h("button", {type: "button",
          "aria-label": `Show the queue before ${inWords(each)}`,
          onclick: () => choose({offset: each.offset, partition: depth.partition})},
        "Before it")}], depth.ticks));
  }

  function numbers(depth) {
    return part("Numbers", "numbers", table(`Length of ${names[1]} over time`, [
      {title: "Time", cell: each => each.time},
      {title: "Ready", number: true, cell: each => figure(each.ready)},
      {title: "Unacked", number: true, cell: each => figure(each.unacked)},
      {title: "Published", number: true, cell: each => figure(each.published)},
      {title: "Left", number: true, cell: each => figure(left(each))},
      {title: "Outcomes", cell: each => code(each.outcomes)}],
    depth.points.filter((each, number, all) => number === 0 || number === all.length - 1 || each.published
      || Object.keys(each.outcomes).length || each.ready !== all[number - 1].ready)));
  }

  // -- at a moment ----------------------------------------------------------------------------------------------------

  function choose(moment, from = 0) {
    wanted = moment;
    first = from;
    if (underWay === null) ask();
    else if (Date.now() - underWay.begun > PATIENCE_MS) underWay.abort.abort();
  }

  async function ask() {
    while (wanted !== null && !ending.signal.aborted) {
      const moment = wanted;
      wanted = null;
      underWay = {begun: Date.now(), abort: new AbortController()};
      const signal = AbortSignal.any([ending.signal, underWay.abort.signal]);
      const guessing = setTimeout(() => guess(moment), GUESS_MS);
      try {
        const query = new URLSearchParams({...moment, first, count: COUNT});
        past = await api(`/queues/${where(...names)}/at?${query}`, {signal});
        // An offset stays one, and so does a mark, which may move; a time becomes absolute.
        past.moment = moment.offset !== undefined || moment.time.startsWith("mark:")
          ? {offset: past.at.offset, partition: past.at.partition} : {time: past.at.time};
        keep();
        list();
      } catch (error) {
        if (error.name !== "AbortError") said.replaceChildren(h("span", {class: "error"}, error.message));
      }
      clearTimeout(guessing);
      underWay = null;
    }
  }

  // Say what the chart knows of a moment that is being read.
  function guess(moment) {
    const time = Date.parse(moment.time);
    const near = charted?.points.findLast(each => moment.offset === undefined ? Date.parse(each.time) <= time
      : [undefined, charted.partition].includes(moment.partition) && each.offset <= moment.offset);
    const known = near === undefined || near.ready === null || near === charted.points.at(-1) ? ""
      : ` By the chart, at ${near.time}: ${figure(near.ready)} ready, ${figure(near.unacked)} unacked.`;
    said.replaceChildren(`Reading the history …${known}`);
  }

  function list() {
    if (past === null) return;
    hand(Date.parse(past.at.time));
    const more = first + past.message_details.length < past.messages;
    said.replaceChildren(`${past.at.time}, offset ${past.at.offset}: ${figure(past.messages_ready)} ready, `
      + `${figure(past.messages_unacknowledged)} unacked`);
    const go = (text, from, there) => h("button", {type: "button", disabled: !there,
      onclick: () => choose(past.moment, from)}, text);
    found.replaceChildren(messages(past, form.value, handle), h("div", {class: "row"},
      go("Previous messages", Math.max(0, first - COUNT), first > 0),
      go("Next messages", first + COUNT, more)));
  }

  // Keep what is shown in the address.
  function keep() {
    const chosen = past?.moment ?? {time: options.time, offset: options.offset, partition: options.partition};
    note("queues", names, {...chosen, range: range.value === "-1h" ? null : range.value, first: first || null});
  }

  function step(by) {
    if (past !== null) choose({offset: Math.max(0, past.at.offset + by), partition: past.at.partition});
  }

  function typedMoment(event) {
    event.preventDefault();
    const text = typed.value.trim();
    if (text) choose(/^\d{1,12}$/.test(text) ? {offset: Number(text)} : {time: text});
  }

  // -- the page -------------------------------------------------------------------------------------------------------

  const changed = () => draw();
  main.append(h("h1", {}, names[1]), h("p", {class: "quiet"}, "Queue of vhost ", h("code", {}, names[0]), ". ",
    h("a", {href: address("history", names)}, "Who did what")), facts, pause.element,
    h("h2", {}, "Over time"), h("div", {class: "row moment"}, labelled("The last", range),
      h("button", {type: "button", onclick: changed}, "Refresh")), drawn,
    h("h2", {}, "At a moment"),
    h("form", {class: "row moment", onsubmit: typedMoment}, labelled("Time, mark or offset", typed),
      h("button", {type: "submit"}, "Show"),
      h("button", {type: "button", onclick: () => step(-1)}, "One event back"),
      h("button", {type: "button", onclick: () => step(1)}, "One event on"), labelled("Bodies as", form)),
    said, found, asked,
    comparing(names, () => options.time ?? null), restoring(names, () => past?.moment ?? null, changed),
    trying(names), purging(names, changed), marking(changed));
  live(`/queues/${where(...names)}?${new URLSearchParams({columns: SHOWN})}`, showNow, fail, ending.signal);
  if (options.offset !== undefined || options.time !== undefined) {
    const {time, offset, partition} = options;
    choose(offset === undefined ? {time} : partition === undefined ? {offset} : {offset, partition}, first);
  }
  draw();
  return () => ending.abort();
}
