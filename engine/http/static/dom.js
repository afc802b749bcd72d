// Makes elements. Text of the broker (names, bodies, errors) only ever becomes text: nothing here reads HTML.

// h("a", {href: "#/queues", class: "name"}, "Queues"): an element. An attribute that is a function is a listener
// (onclick), `true` is an attribute without a value, `false`, null and undefined leave it out.
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.flat(Infinity).filter(child => child != null));
  return element;
}

// A table that is wider than its place scrolls. Then the keyboard can reach it, to scroll it by the arrow keys.
const scrolling = new ResizeObserver(entries => {
  for (const {target} of entries) {
    if (target.scrollWidth > target.clientWidth) target.tabIndex = 0; else target.removeAttribute("tabindex");
  }
});

// A table. `columns`: [{title, cell: row => text or element, number: true where it is a figure}].
export function table(caption, columns, rows) {
  const wide = h("div", {class: "wide", role: "group", "aria-label": caption}, h("table", {},
    h("caption", {}, caption),
    h("thead", {}, h("tr", {}, columns.map(each =>
      h("th", {scope: "col", class: each.number ? "n" : null}, each.title)))),
    h("tbody", {}, rows.map(row => h("tr", {}, columns.map(each =>
      h("td", {class: each.number ? "n" : null}, each.cell(row) ?? "")))))));
  scrolling.observe(wide);
  return wide;
}

// A number as people read it: 1,234,567.
export const figure = number => number == null ? "" : number.toLocaleString("en");

// JSON as text, in a <code>; nothing for an empty object.
export const code = value => h("code", {}, value && Object.keys(value).length ? JSON.stringify(value) : "");
