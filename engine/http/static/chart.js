// A queue's length over time as a drawing, with what came and left below it, and a moment that the reader moves.

import {h} from "./dom.js";
import {explained} from "./outcomes.js";

const SPACE = "http://www.w3.org/2000/svg";
const WIDTH = 1000, LENGTH = 160, TRAFFIC = 60;  // units of the drawing, which is stretched to the width of the page
const PAGE = 10;  // points that Page Up and Page Down go

function shape(tag, attributes) {
  const element = document.createElementNS(SPACE, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

// The drawing of an answer of /api/history/depth. `move(time)` is called with the time that the reader chooses, in
// milliseconds. Returns {element, show(time)}: `show` moves the line to a time; null takes it away.
export function chart(found, label, move) {
  const times = found.points.map(each => Date.parse(each.time));
  const [start, end] = [times[0], times[times.length - 1]];
  const at = time => WIDTH * (time - start) / (end - start || 1);
  const most = Math.max(1, ...found.points.map(each => (each.ready ?? 0) + (each.unacked ?? 0)));
  const traffic = Math.max(1, ...found.points.map(each => Math.max(each.published, left(each))));
  const drawing = shape("svg", {viewBox: `0 0 ${WIDTH} ${LENGTH + TRAFFIC + 10}`, preserveAspectRatio: "none",
    role: "slider", tabindex: 0, "aria-label": label, "aria-valuemin": start, "aria-valuemax": end});
  drawing.append(
    shape("path", {class: "all", d: area(each => (each.ready ?? 0) + (each.unacked ?? 0))}),
    shape("path", {class: "ready", d: area(each => each.ready ?? 0)}),
    ...found.points.flatMap((each, number) => number === 0 ? [] : bars(each, number)),
    ...found.ticks.map(each => {
      const line = shape("line", {class: "tick", x1: at(Date.parse(each.time)), x2: at(Date.parse(each.time)), y1: 0,
        y2: LENGTH});
      const title = shape("title", {});
      title.textContent = inWords(each);
      line.append(title);
      return line;
    }));
  const hand = shape("line", {class: "hand", y1: 0, y2: LENGTH + TRAFFIC + 10, visibility: "hidden"});
  drawing.append(hand);
  let shown = end;
  tell(end); // a slider has a value, also before one is chosen, and where a link's moment is not in the drawing

  function area(height) {
    const y = each => LENGTH - (LENGTH - 4) * height(each) / most;
    const steps = found.points.map((each, number) => `L${at(times[number])} ${y(each)}`);
    return `M0 ${LENGTH} ${steps.join(" ")} L${WIDTH} ${LENGTH} Z`;
  }

  function bars(each, number) {
    const x = at(times[number - 1]), width = Math.max(1, at(times[number]) - x), middle = LENGTH + 5 + TRAFFIC / 2;
    const [came, went] = [each.published, left(each)].map(count => TRAFFIC / 2 * count / traffic);
    return [shape("rect", {class: "came", x, width, y: middle - came, height: came}),
      shape("rect", {class: "went", x, width, y: middle, height: went})];
  }

  function show(time) {
    const seen = time != null && time >= start && time <= end;
    hand.setAttribute("visibility", seen ? "visible" : "hidden");
    if (!seen) return;
    shown = time;
    hand.setAttribute("x1", at(time));
    hand.setAttribute("x2", at(time));
    tell(time);
  }

  function tell(time) {
    drawing.setAttribute("aria-valuenow", time);
    drawing.setAttribute("aria-valuetext", new Date(time).toISOString());
  }

  function choose(time) {
    const chosen = Math.round(Math.min(end, Math.max(start, time)));
    show(chosen);
    move(chosen);
  }

  function point(event) {
    const {left: from, width} = drawing.getBoundingClientRect();
    choose(start + (end - start) * (event.clientX - from) / width);
  }

  drawing.addEventListener("pointerdown", event => {
    drawing.setPointerCapture(event.pointerId);
    point(event);
  });
  drawing.addEventListener("pointermove", event => {
    if (drawing.hasPointerCapture(event.pointerId)) point(event);
  });
  drawing.addEventListener("keydown", event => {
    const steps = {ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -PAGE, PageUp: PAGE,
      Home: -times.length, End: times.length}[event.key];
    if (steps === undefined) return;
    event.preventDefault();
    const before = times.findLastIndex(each => each <= shown);
    const number = steps < 0 && times[before] < shown ? before + steps + 1 : before + steps;
    choose(times[Math.min(times.length - 1, Math.max(0, number))]);
  });
  return {element: h("div", {class: "chart"}, drawing), show};
}

// How many messages left the queue before a point. A dead letter left for another reason, which is counted.
export function left(point) {
  const stayed = ["refused", "duplicates", "dead_lettered"];
  return Object.entries(point.outcomes).reduce((sum, [name, count]) => sum + (stayed.includes(name) ? 0 : count), 0);
}

// A tick as a sentence.
export function inWords({kind, text, user, why, messages}) {
  const what = messages == null ? kind : `${kind}, ${messages} messages`;
  return [what, text, user && `by ${explained(user, why)}`].filter(each => each).join(" · ");
}
