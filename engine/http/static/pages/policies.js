// Policies, of users or of operators. Before one is saved, the page shows what it would do at once to what is queued, in
// all queues, and what it would have done to one queue's last hour. Both answers come from the API.

import {address} from "../address.js";
import {api, where} from "../api.js";
import {code, figure, h, table} from "../dom.js";
import {object, view} from "./list.js";
import {trial} from "./queue_changes.js";

const QUEUE_KINDS = ["queues", "classic_queues", "quorum_queues", "streams"];
const WORST = 20;
const named = row => `${row.name} in vhost ${row.vhost}`;
const count = (number, what) => `${figure(number)} ${what}${number === 1 ? "" : "s"}`;

export const policies = rules("policies", "Policies", "Set a policy", ["all", "exchanges", ...QUEUE_KINDS]);
export const operatorPolicies = rules("operator-policies", "Operator policies", "Set an operator policy", QUEUE_KINDS,
  "Limits that hold beside the policy of a queue. Of two limits the lower one holds.");

function rules(way, title, add, kinds, about) {
  const path = ({vhost, name}) => `/${way}/` + where(vhost, name);
  const text = (column, field) => ({title: column, sort: field, cell: row => String(row[field] ?? "")});
  return view(way, {
    title, path: "/" + way, filter: true, about, one: named, remove: path,
    columns: [text("Vhost", "vhost"), text("Name", "name"), text("Pattern", "pattern"), text("Applies to", "apply-to"),
      {title: "Priority", sort: "priority", number: true, cell: row => figure(row.priority)},
      {title: "Definition", cell: row => code(row.definition)}],
    beforeRemoval: async row => effects(await api(`${path(row)}/effects?clear=true&limit=${WORST}`)),
    edit: row => ({vhost: row.vhost, name: row.name, pattern: row.pattern, apply: row["apply-to"],
      priority: String(row.priority), definition: JSON.stringify(row.definition)}),
    form: {title: add, fields: [
      {name: "vhost", title: "Vhost", value: "/", required: true}, {name: "name", title: "Name", required: true},
      {name: "pattern", title: "Pattern", required: true}, {name: "apply", title: "Applies to", choices: kinds},
      {name: "priority", title: "Priority", kind: "number", value: "0"},
      {name: "definition", title: "Definition (JSON)", value: "{}", required: true}],
    send: ({vhost, name, pattern, apply, priority, definition}) => [path({vhost, name}), "PUT",
      {pattern, "apply-to": apply, priority: Number(priority), definition: object(definition, "Definition")}],
    before: async (asked, body) => {
      const query = new URLSearchParams({...body, definition: JSON.stringify(body.definition), limit: WORST});
      return effects(await api(`${asked}/effects?${query}`),
        queue => trial([queue.vhost, queue.name], way === "policies" ? "policy" : "operator_policy",
          JSON.stringify(body.definition), "-1h"));
    }},
  });
}

// An answer of .../effects as elements. `lastHour(queue)`: elements about the last hour of a queue.
function effects(found, lastHour) {
  const hour = h("div", {"aria-live": "polite"});
  async function show(queue) {
    hour.replaceChildren(h("p", {}, `Asking about the last hour of ${queue.name} …`));
    try {
      hour.replaceChildren(h("h3", {}, `The last hour of ${queue.name}`), ...await lastHour(queue));
    } catch (error) {
      hour.replaceChildren(h("p", {class: "error"}, error.message));
    }
  }
  const columns = [
    {title: "Queue", cell: each => h("a", {href: address("queues", [each.vhost, each.name])}, each.name)},
    {title: "Policy now", cell: each => each.before ?? "none"}, {title: "Then", cell: each => each.after ?? "none"},
    {title: "Messages", number: true, cell: each => figure(each.messages)},
    {title: "Would leave at once", cell: each => removed(each)},
    {title: "Dead-lettered", number: true, cell: each => figure(each.dead_lettered)},
    {title: "Refuses publishes", cell: each => each.refuses ? "yes" : ""}];
  if (lastHour) columns.push({title: "", cell: each => h("button", {type: "button",
    "aria-label": `Show the last hour of ${each.name}`, onclick: () => show(each)}, "Last hour")});
  const lost = found.removed.reduce((sum, each) => sum + each.messages, 0);
  return [
    h("p", {}, `${count(found.matched, "queue")} would have this policy, ${figure(found.matched_now)} now. `
      + `${count(found.changed, "queue")} would change.`),
    lost ? h("p", {class: "error"}, `${count(lost, "message")} would leave at once (${removed(found)}), `
      + `${figure(found.dead_lettered)} of them as dead letters.`)
      : h("p", {class: "good"}, "No message would leave a queue at once."),
    found.refusing ? h("p", {class: "error"}, `${count(found.refusing, "queue")} would refuse the next message.`) : "",
    found.complete ? "" : h("p", {class: "error"},
      `The time for an answer was over before ${found.not_seen.join(", ")}: more queues may be concerned.`),
    found.queues.length ? table(found.changed > found.queues.length
      ? `The ${figure(found.queues.length)} queues that lose most, of ${figure(found.changed)}` : "Queues that change",
    columns, found.queues) : "", hour];
}

const removed = ({removed: all}) =>
  all.map(each => `${each.rule ? `${each.outcome}, ${each.rule}` : each.outcome}: ${figure(each.messages)}`).join("; ");
