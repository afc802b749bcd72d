// The state of the node at a glance, with live figures.

import {figure, h, table} from "../dom.js";
import {live} from "../live.js";

const TOTALS = [["queues", "Queues"], ["connections", "Connections"], ["channels", "Channels"], ["consumers", "Consumers"], ["exchanges", "Exchanges"]];
const RATES = [["publish", "Published"], ["confirm", "Confirmed"], ["deliver_get", "Delivered"], ["ack", "Acked"],
  ["redeliver", "Redelivered"], ["return_unroutable", "Returned"], ["drop_unroutable", "Unroutable, dropped"]];
const KINDS = [["messages_ready", "Ready"], ["messages_unacknowledged", "Unacked"]];

const OLD_MS = 20000;  // counters of other nodes come every five seconds

export function show(main) {
  const ending = new AbortController();
  const content = h("div", {});
  const problem = h("p", {class: "error", role: "alert"});
  main.append(h("h1", {}, "Overview"), problem, content);
  live("/overview", found => {
    content.replaceChildren(...shown(found));
    problem.textContent = "";
  }, error => { problem.textContent = error.message; }, ending.signal);
  return () => ending.abort();
}

function shown(found) {
  const {message_stats: stats = {}, queue_totals: totals = {}, object_totals: objects = {}, history} = found;
  const row = (fields, of) => fields.filter(([name]) => of[name] != null).map(([name, title]) => ({title, value: of[name], rate: of[name + "_details"]?.rate}));
  const figures = (caption, rows) => table(caption, [{title: "", cell: each => each.title},
    {title: "Number", number: true, cell: each => figure(each.value)},
    {title: "A second", number: true, cell: each => figure(each.rate)}], rows);
  return [
    alarms(found),
    found.counters_age_ms > OLD_MS
      ? h("p", {class: "quiet"}, `Figures of queues that this node does not fold are up to ${figure(Math.round(found.counters_age_ms / 1000))} s old.`) : null,
    h("p", {}, `${found.product_name} ${found.product_version} on node ${found.node}, cluster ${found.cluster_name}`),
    figures("Messages", [...row(KINDS, totals), ...row(RATES, stats)]),
    figures("Objects", row(TOTALS, objects)),
    history ? archive(history) : null,
    found.listeners?.length ? table("Listeners", [
      {title: "Node", cell: each => each.node}, {title: "Protocol", cell: each => each.protocol},
      {title: "Address", cell: each => each.ip_address}, {title: "Port", number: true, cell: each => String(each.port)}], found.listeners) : null,
    found.log?.length ? table("Partitions of the log", [
      {title: "Partition", cell: each => each.partition}, {title: "Owner", cell: each => each.leader},
      {title: "Next offset", number: true, cell: each => figure(each.next_offset)},
      {title: "Durable up to", number: true, cell: each => figure(each.durable_offset)}], found.log) : null,
  ].filter(Boolean);
}

function alarms(found) {
  const texts = [found.publishing_blocked, ...(found.alarms ?? []).map(each => typeof each === "string" ? each : JSON.stringify(each))].filter(Boolean);
  return texts.length ? h("ul", {class: "error"}, texts.map(each => h("li", {}, String(each)))) : h("p", {class: "good"}, "No alarm.");
}

function archive(history) {
  const facts = [["Bytes on this disk", figure(history.local_bytes)], ["Bytes more a day", figure(history.growth_bytes_per_day)],
    ["Disk full in days", figure(history.disk_full_in_days)], ["Archive", history.archive ? JSON.stringify(history.archive) : "none"]];
  return table("History", [{title: "", cell: each => each[0]}, {title: "", cell: each => each[1]}], facts);
}
