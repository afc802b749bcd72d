// What a person does to a queue from its page: marks, purges, restorations, comparisons, trials of a policy. Each asks
// the API, which decides.

import {api, where} from "../api.js";
import {figure, h, table} from "../dom.js";
import {object} from "./list.js";

// A form that shows what it did, or the reason why it could not. `act` returns the elements to show.
export function form(title, act, button, ...fields) {
  const said = h("div", {role: "status"});
  const send = h("button", {type: "submit"}, button);
  const submit = async event => {
    event.preventDefault();
    send.disabled = true;
    said.replaceChildren();
    try {
      said.replaceChildren(...await act(said));
    } catch (error) {
      said.replaceChildren(h("p", {class: "error"}, error.message));
    } finally {
      send.disabled = false;
    }
  };
  return h("form", {class: "moment", onsubmit: submit}, h("h2", {}, title),
    h("div", {class: "row"}, fields, send), said);
}

export const labelled = (text, field) => h("label", {}, text, " ", field);

// A form that gives this moment a name.
export function marking(done) {
  const name = h("input", {required: true}), note = h("input");
  return form("Set a mark", async () => {
    await api("/marks/" + where(name.value), {method: "PUT", body: {note: note.value}});
    done();
    return [h("p", {class: "good"}, `This moment is mark:${name.value}`)];
  }, "Set mark", labelled("Name of the mark", name), labelled("Note", note));
}

// A form that empties the queue, after a second question.
export function purging(names, done) {
  return form("Purge", async said => {
    const cancel = h("button", {type: "button", onclick: () => said.replaceChildren()}, "Keep them");
    const sure = h("button", {type: "button", onclick: async () => {
      sure.disabled = cancel.disabled = true;
      try {
        await api(`/queues/${where(...names)}/contents`, {method: "DELETE"});
        said.replaceChildren(h("p", {class: "good"}, "The queue was purged. The purge can be undone below."));
        done();
      } catch (error) {
        said.replaceChildren(h("p", {class: "error"}, error.message));
      }
    }}, "Purge now");
    return [h("p", {}, `All ready messages of ${names[1]} leave the queue.`), h("div", {class: "row"}, sure, cancel)];
  }, "Purge this queue");
}

// What a person does to one message of a list: buttons, and below the list the question whether it is meant. `asked`: the
// element for questions and answers. `done`: called when something changed.
export function handling(names, asked, done) {
  function question(text, button, fields, act) {
    const reason = h("input", {});
    const cancel = h("button", {type: "button", onclick: () => asked.replaceChildren()}, "Leave it");
    const sure = h("button", {type: "submit"}, button);
    const submit = async event => {
      event.preventDefault();
      sure.disabled = cancel.disabled = true;
      try {
        asked.replaceChildren(h("p", {class: "good"}, await act(reason.value)));
        done();
      } catch (error) {
        asked.replaceChildren(h("p", {class: "error"}, error.message));
      }
    };
    asked.replaceChildren(h("form", {class: "moment", onsubmit: submit}, h("p", {}, text),
      h("div", {class: "row"}, fields, labelled("Reason", reason), sure, cancel)));
    sure.focus();
  }

  function remove(id, partition) {
    question(`Message ${id} of ${names[1]} is deleted.`, "Delete now", [], async reason => {
      const query = new URLSearchParams({reason, partition});
      await api(`/queues/${where(...names)}/messages/${id}?${query}`, {method: "DELETE"});
      return `Message ${id} was deleted. This can be undone below.`;
    });
  }

  function move(id, partition) {
    const to = h("input", {required: true});
    question(`Message ${id} of ${names[1]} goes to the end of another queue.`, "Move now", [labelled("To queue", to)],
      async reason => {
        const answer = await api(`/queues/${where(...names)}/messages/move`,
          {method: "POST", body: {messages: [id], partition, to: to.value, reason}});
        if (answer.stayed.length) throw new Error(`Message ${id} stays: ${answer.stayed[0].reason}`);
        return `Message ${id} ${answer.arrived ? "is now in" : "is on its way to"} ${to.value}.`;
      });
  }

  return ({message_id: id, state}, partition) => state === "unacked" ? "" : h("div", {class: "row"},
    h("button", {type: "button", "aria-label": `Delete message ${id}`, onclick: () => remove(id, partition)}, "Delete"),
    h("button", {type: "button", "aria-label": `Move message ${id}`, onclick: () => move(id, partition)}, "Move"));
}

// A button that pauses the queue, or lets it deliver again. Call `show` with the queue as the API has it.
export function pausing(names, done) {
  const said = h("span", {role: "status"});
  let paused = false;
  const button = h("button", {type: "button", disabled: true, onclick: async () => {
    button.disabled = true;
    try {
      await api(`/queues/${where(...names)}/${paused ? "resume" : "pause"}`, {method: "PUT", body: {}});
      said.replaceChildren();
      done();
    } catch (error) {
      said.replaceChildren(h("span", {class: "error"}, error.message));
      button.disabled = false;
    }
  }}, "Pause");
  const show = queue => {
    paused = queue.state === "paused";
    button.disabled = false;
    button.textContent = paused ? "Resume deliveries" : "Pause deliveries";
  };
  return {element: h("div", {class: "row"}, button, said), show};
}

// A form that brings messages back: it shows what would come back, then does it. `moment()`: {time} or {offset} that
// is chosen; null while none is.
export function restoring(names, moment, done) {
  const what = h("select", {}, h("option", {value: "purge"}, "the last purge"),
    h("option", {value: "delete"}, "the last deletion"),
    h("option", {value: "remove"}, "the last removal of single messages"),
    h("option", {value: "moment"}, "all losses since the moment shown above"));
  const into = h("input", {value: names[1], required: true});
  const path = `/queues/${where(...names)}/restore`;
  return form("Undo", async said => {
    const chosen = what.value === "moment" ? moment() : {undo: what.value};
    if (chosen === null) throw new Error("Choose a moment first");
    const plan = await api(path, {method: "POST", body: {...chosen, to: into.value, dry_run: true}});
    // What was shown is done, also if another purge comes between.
    const same = chosen.undo === undefined ? chosen
      : {offset: plan.at.offset, partition: plan.at.partition,
        only: [{purge: "purged", delete: "deleted", remove: "removed"}[chosen.undo]]};
    const act = h("button", {type: "button", onclick: async () => {
      act.disabled = true;
      try {
        const answer = await api(path, {method: "POST", body: {...same, to: plan.to, name: plan.name}});
        said.replaceChildren(result(answer));
        done();
      } catch (error) {
        said.replaceChildren(h("p", {class: "error"}, error.message));
      }
    }}, `Bring ${figure(plan.messages)} messages back`);
    return [h("p", {}, `${figure(plan.messages)} messages (${figure(plan.message_bytes)} bytes) of ${plan.at.time},`,
      ` offset ${plan.at.offset}, would come back into ${plan.to}.`), fates(plan), act];
  }, "Show what would come back", labelled("Undo", what), labelled("Into queue", into));
}

function fates(plan) {
  return table("The fates of the messages that were there", [
    {title: "Fate", cell: ([fate]) => fate}, {title: "Messages", number: true, cell: ([, count]) => figure(count)},
  ], Object.entries(plan.fates));
}

function result(answer) {
  return h("div", {},
    h("p", {class: "good"}, `${figure(answer.restored)} messages came back into ${answer.to}.`,
      answer.duplicates ? ` ${figure(answer.duplicates)} had come back before.` : "",
      answer.refused ? ` ${figure(answer.refused)} were refused by the queue's limits.` : "",
      answer.declared ? " The queue was declared again." : ""),
    answer.bindings_lost.map(each =>
      h("p", {class: "error"}, `A binding of ${each.source} is lost: ${each.reason}`)));
}

// A form that compares two moments. `moment()`: the time that is chosen, or null.
export function comparing(names, moment) {
  const from = h("input", {required: true, value: moment() ?? "-1h"}), to = h("input", {value: "-0s"});
  return form("Compare two moments", async () => {
    const query = new URLSearchParams({from: from.value, to: to.value || "-0s", limit: 200});
    const found = await api(`/history/diff/${where(...names)}?${query}`);
    return [
      table(`Offsets ${found.from} to ${found.to} of ${found.partition}`, [
        {title: "Outcome", cell: each => each.outcome}, {title: "Rule", cell: each => each.rule},
        {title: "User", cell: each => each.user},
        {title: "Change", number: true, cell: each => figure(each.change)}], found.summary),
      table("The first changes", [
        {title: "Time", cell: each => each.timestamp}, {title: "Offset", number: true, cell: each => String(each.offset)},
        {title: "Outcome", cell: each => each.outcome}, {title: "User", cell: each => each.user},
        {title: "Message", number: true, cell: each => String(each.message_id)}], found.rows),
      found.more ? h("p", {class: "quiet"}, `${figure(found.more)} more`) : "",
      found.complete ? "" : h("p", {class: "error"}, "The time for an answer was over before its end."),
    ];
  }, "Compare", labelled("From", from), labelled("To", to));
}

const SPANS = [["-1h", "the last hour"], ["-1d", "the last day"], ["-0s", "what is queued now"]];

// A form that shows what a policy would have done to the queue. It sets none.
export function trying(names) {
  const options = pairs => pairs.map(([value, text]) => h("option", {value}, text));
  const kind = h("select", {}, options([["policy", "Policy"], ["operator_policy", "Operator policy"]]));
  const definition = h("input", {required: true, size: 34, value: '{"max-length": 1000}'});
  const since = h("select", {}, options(SPANS));
  return form("Try a policy", () => {
    object(definition.value, "Definition");
    return trial(names, kind.value, definition.value, since.value);
  }, "Show what it would do", labelled("Kind", kind), labelled("Definition (JSON)", definition), labelled("Over", since));
}

// What a policy would have done to a queue since a moment, as elements. `kind`: policy or operator_policy.
export async function trial(names, kind, definition, since) {
  const query = new URLSearchParams({[kind]: definition, from: since, to: "-0s", limit: 100});
  const found = await api(`/history/what-if/${where(...names)}?${query}`);
  const as = (outcome, rule) => rule ? `${outcome} (${rule})` : outcome;
  return [
    table("Nothing was set: the queue as it was, and as it would have been", [
      {title: "", cell: ([title]) => title},
      {title: "Longest", number: true, cell: ([, world]) => figure(world.greatest_depth)},
      {title: "At the end", number: true, cell: ([, world]) => figure(world.depth)},
      {title: "Messages that left", cell: ([, world]) =>
        world.outcomes.map(each => `${as(each.outcome, each.rule)}: ${figure(each.messages)}`).join(", ")}],
    [["As it was", found.before], ["With this policy", found.after]]),
    found.summary.length ? table("Messages that would have ended otherwise", [
      {title: "As it was", cell: each => as(each.before, each.before_rule)},
      {title: "With this policy", cell: each => as(each.after, each.after_rule)},
      {title: "Messages", number: true, cell: each => figure(each.messages)}], found.summary)
      : h("p", {class: "good"}, "No message would have ended otherwise."),
    found.complete ? "" : h("p", {class: "error"},
      `The answer ends ${figure(found.left)} events before the end: ${found.stopped === "time" ? "its time was over" : "too many messages differ"}.`),
    h("details", {}, h("summary", {}, "What this answer can't know"),
      h("ul", {}, found.limits.map(each => h("li", {}, each)))),
  ];
}
