"use strict";
const $ = id => document.getElementById(id);
let chosen = null, busy = false, again = false;

async function api(path) {
  const answer = await fetch(location.origin + "/api" + path);
  const content = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(content.reason || answer.status);
  return content;
}
function row(cells, numbers) {
  const tr = document.createElement("tr");
  cells.forEach((cell, at) => {
    const td = tr.insertCell();
    if (numbers.includes(at)) td.className = "n";
    if (cell instanceof Node) td.append(cell); else td.textContent = cell ?? "";
  });
  return tr;
}
function code(value) {
  const element = document.createElement("code");
  element.textContent = value && Object.keys(value).length ? JSON.stringify(value) : "";
  return element;
}
async function refresh() {
  try {
    const [overview, queues, policies] = await Promise.all([api("/overview"), api("/queues"), api("/policies")]);
    $("about").textContent = `${overview.product_version} on ${overview.node}`;
    $("queues").replaceChildren(...queues.map(queue => {
      const policy = document.createElement("span");
      policy.textContent = [queue.policy, queue.operator_policy].filter(Boolean).join(" + ");
      const found = policies.find(each => each.vhost === queue.vhost && each.name === queue.policy);
      if (found) policy.title = `${found.pattern} ${JSON.stringify(found.definition)} priority ${found.priority}`;
      const tr = row([queue.vhost, queue.name, queue.type, policy,
        code({...queue.arguments, ...queue.effective_policy_definition}), queue.messages_ready,
        queue.messages_unacknowledged, queue.message_bytes_ready, queue.consumers], [5, 6, 7, 8]);
      tr.className = "queue";
      tr.onclick = () => choose(queue, overview.log.find(each => each.partition === queue.partition).durable_offset);
      return tr;
    }));
    $("error").textContent = "";
  } catch (error) { $("error").textContent = error.message; }
}
function choose(queue, end) {
  chosen = queue;
  $("slider").min = queue.queue_id + 1;
  $("slider").max = end;
  $("slider").value = end;
  $("past").hidden = false;
  show();
}
async function show() {  // one question at a time; the last position of the slider is always asked for
  if (busy) { again = true; return; }
  busy = true;
  const where = [chosen.vhost, chosen.name].map(encodeURIComponent).join("/");
  try {
    const past = await api(`/queues/${where}/at?offset=${$("slider").value}&truncate=200`);
    $("name").textContent = past.name;
    $("when").textContent = past.at.time;
    $("then").textContent = `offset ${past.at.offset} of ${past.at.partition}: ${past.messages_ready} ready, ` +
      `${past.messages_unacknowledged} unacknowledged, policy ${past.policy || "none"}; ` +
      `the first ${past.message_details.length} are shown`;
    $("messages").replaceChildren(...past.message_details.map(message => row([
      message.state === "ready" ? message.position : "", message.message_id, message.state, message.published,
      message.routing_key, code(message.properties), message.payload_bytes, message.payload], [0, 1, 6])));
  } catch (error) {
    $("then").textContent = error.message;
    $("messages").replaceChildren();
  }
  busy = false;
  if (again) { again = false; show(); }
}
$("slider").oninput = () => show();
refresh();
setInterval(refresh, 5000);
