// Lists of the broker's things: one page at a time, which the API filters, sorts and cuts. The page never asks for all.
//
// A list is {title, path, columns, one, filter, remove, form, about}:
//   path      below /api
//   columns   [{title, cell: row => text or element, number, sort: field}]; asked: the fields that the answer has
//   filter    the list can be filtered by name
//   remove    row => path to DELETE;  one: row => its name in the question and for a screen reader
//   beforeRemoval   row => elements that say what the removal would do, shown with the question
//   live      its figures change by themselves
//   form      {title, fields: [{name, title, value, kind, choices, required}], send: values => [path, method, body]}
//             before: (path, body) => elements that say what it would do: they are shown first, with a button that does it
//   edit      row => values for the form

import {note} from "../address.js";
import {api} from "../api.js";
import {figure, h, table} from "../dom.js";
import {live} from "../live.js";

const PAGE_SIZE = 100;

// A view of a list at #/`way`.
export const view = (way, list) => ({show: (main, names, options) => show(main, way, list, options)});

async function show(main, way, list, options) {
  const state = {page: 1, ...options};
  let asking = new AbortController(), listening = new AbortController();
  const result = h("div", {"aria-live": "polite"});
  const problem = h("p", {class: "error", role: "alert"});

  // The answer to a former question is not shown any more.
  async function load() {
    asking.abort();
    listening.abort();
    asking = new AbortController();
    const {signal} = asking;
    const query = new URLSearchParams({page: state.page, page_size: PAGE_SIZE});
    for (const option of ["name", "use_regex", "sort", "sort_reverse"]) if (state[option]) query.set(option, state[option]);
    if (list.asked) query.set("columns", list.asked);
    result.setAttribute("aria-live", "polite");
    note(way, [], {...state, page: state.page > 1 ? state.page : null});
    try {
      const found = await api(`${list.path}?${query}`, {signal});
      if (state.page > 1 && !found.items.length) return await go({page: Math.max(1, found.page_count)});
      problem.textContent = "";
      result.replaceChildren(rows(found), turns(found));
      if (list.live) listen(`${list.path}?${query}`);
    } catch (error) {
      if (signal.aborted) return;
      if (state.page > 1) return await go({page: 1});  // there may be no such page any more
      problem.textContent = error.message;
      result.replaceChildren();
    }
  }

  // Shows what changes by itself, and announces nothing of it. The rows stay while the reader is at a button of them.
  function listen(path) {
    listening = new AbortController();
    live(path, found => {
      if (result.contains(document.activeElement)) return;
      result.setAttribute("aria-live", "off");
      result.replaceChildren(rows(found), turns(found));
      problem.textContent = "";
    }, error => { problem.textContent = error.message; }, listening.signal);
  }

  // Carries out a change. Shows the API's reason if it is refused.
  async function change(path, method, body) {
    try {
      await api(path, {method, body});
    } catch (error) {
      problem.textContent = error.message;
      return false;
    }
    await load();
    return true;
  }

  const go = changed => { Object.assign(state, changed); return load(); };

  function rows(found) {
    const columns = list.columns.map(each => !each.sort ? each : {...each, title: sorter(each)});
    if (list.edit) columns.push({title: "", cell: row => h("button", {type: "button", "aria-label": `Edit ${list.one(row)}`,
      onclick: () => form.fill(list.edit(row))}, "Edit")});
    if (list.remove) columns.push({title: "", cell: row => list.remove(row) && h("button", {
      type: "button", "aria-label": `Delete ${list.one(row)}`,
      onclick: event => confirmed(event.currentTarget, `Delete ${list.one(row)}?`, () => change(list.remove(row), "DELETE"),
        list.beforeRemoval && (() => list.beforeRemoval(row)))}, "Delete")});
    const some = found.filtered_count === found.total_count ? "" : ` of ${figure(found.total_count)}`;
    return table(`${figure(found.filtered_count)}${some}`, columns, found.items);
  }

  function sorter(column) {
    const mine = state.sort === column.sort;
    const reversed = mine && state.sort_reverse === "true";
    return h("button", {type: "button", class: "sort",
      onclick: () => go({sort: column.sort, sort_reverse: mine && !reversed ? "true" : null, page: 1})},
      column.title, mine ? (reversed ? " ▼" : " ▲") : "");
  }

  function turns(found) {
    if (found.page_count < 2) return h("p", {});
    const page = Number(state.page);
    return h("nav", {class: "row", "aria-label": "Pages of the list"},
      h("button", {type: "button", disabled: page <= 1, onclick: () => go({page: page - 1})}, "Previous"),
      h("span", {}, `Page ${figure(page)} of ${figure(found.page_count)}`),
      h("button", {type: "button", disabled: page >= found.page_count, onclick: () => go({page: page + 1})}, "Next"));
  }

  const form = list.form ? changeForm(list.form, change) : null;
  main.append(h("h1", {}, list.title), list.about ? h("p", {class: "quiet"}, list.about) : "",
    list.filter ? filterForm(state, go) : "", problem, result, form?.element ?? "");
  await load();
  return () => { asking.abort(); listening.abort(); };
}

function filterForm(state, go) {
  const name = h("input", {id: "filter", type: "search", value: state.name ?? ""});
  const regex = h("input", {id: "regex", type: "checkbox", checked: state.use_regex === "true"});
  return h("form", {class: "row", role: "search", onsubmit: event => {
    event.preventDefault();
    go({name: name.value || null, use_regex: regex.checked ? "true" : null, page: 1});
  }}, h("label", {for: "filter"}, "Name contains "), name,
    h("label", {}, regex, " regular expression"), h("button", {type: "submit"}, "Filter"));
}

// {element, fill(values)}: the form. With `before` it shows first what the change would do, and does it on a second button.
function changeForm(form, change) {
  const inputs = form.fields.map(field => h(field.choices ? "select" : "input", {
    id: `field-${field.name}`, type: field.choices ? null : field.kind ?? "text", value: field.value ?? "",
    required: field.required, autocomplete: "off"}, (field.choices ?? []).map(each => h("option", {value: each}, each))));
  const wrong = h("p", {class: "error", role: "alert"}), shown = h("div", {"aria-live": "polite"});
  let asking = 0;
  async function submit(event) {
    event.preventDefault();
    const number = ++asking;
    wrong.textContent = "";
    shown.replaceChildren();
    const values = Object.fromEntries(form.fields.map((field, at) => [field.name, inputs[at].value]));
    let asked;
    try { asked = form.send(values); } catch (error) { wrong.textContent = error.message; return; }
    const act = async () => {
      if (!await change(...asked)) return;
      element.reset();
      shown.replaceChildren();
    };
    if (!form.before) return await act();
    shown.replaceChildren(h("p", {}, "Asking what it would do …"));
    let said;
    try {
      said = await form.before(asked[0], asked[2]);
    } catch (error) {
      said = [h("p", {class: "error"}, error.message)];
      if (error.status < 500) return number === asking && shown.replaceChildren(...said);  // it would be refused, too
    }
    if (number !== asking) return;
    shown.replaceChildren(h("h2", {}, `What ${values.name} would do`), ...said,
      h("button", {type: "button", onclick: act}, form.title));
  }
  // What was shown is of other values, after a change of one.
  const forget = () => { asking++; shown.replaceChildren(); };
  const element = h("form", {class: "change", onsubmit: submit, oninput: forget}, h("h2", {}, form.title),
    form.fields.map((field, at) => [h("label", {for: `field-${field.name}`}, field.title), inputs[at]]), wrong,
    h("button", {type: "submit"}, form.before ? "Show what it would do" : form.title));
  const fill = values => {
    forget();
    form.fields.forEach((field, at) => { inputs[at].value = values[field.name]; });
    inputs[0].focus();
  };
  return {element: h("div", {}, element, shown), fill};
}

// Asks in the page, beside the button, before `then` is done. `about`: a function of elements that say what it would do.
export function confirmed(button, question, then, about = null) {
  const close = () => { dialog.close(); dialog.remove(); button.focus(); };
  const said = h("div", {"aria-live": "polite"}, about ? "Asking what it would do …" : "");
  const dialog = h("dialog", {"aria-label": question, oncancel: () => dialog.remove()},
    h("p", {}, question), said,
    h("div", {class: "row"},
      h("button", {type: "button", onclick: () => { close(); then(); }}, "Yes"),
      h("button", {type: "button", autofocus: true, onclick: close}, "No")));
  document.body.append(dialog);
  dialog.showModal();
  if (about) about().then(found => said.replaceChildren(...found), error => { said.textContent = error.message; });
}

// The JSON object that a field has. Throws an error for people.
export function object(text, title) {
  let value = null;
  try { value = JSON.parse(text || "{}"); } catch { /* below */ }
  if (value === null || typeof value !== "object" || Array.isArray(value)) throw new Error(`${title} is a JSON object, such as {"max-length": 10}`);
  return value;
}
