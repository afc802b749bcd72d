// Seals of the history, with a button that checks them a portion at a time; and what the audits before trims found.

import {api, where} from "../api.js";
import {figure, h, table} from "../dom.js";

export async function show(main) {
  const ending = new AbortController();
  const {signal} = ending;
  const listed = h("div", {}), audits = h("div", {}), said = h("div", {"aria-live": "polite"});
  const problem = h("p", {class: "error", role: "alert"});
  const key = h("textarea", {id: "key", rows: 4, cols: 66, spellcheck: "false", placeholder: "-----BEGIN PUBLIC KEY-----"});
  let checking = null;

  async function load() {
    const found = await api("/seals", {signal});
    listed.replaceChildren(table("Partitions of the history", [
      {title: "Partition", cell: row => row.partition},
      {title: "Seals", number: true, cell: row => figure(row.seals)},
      {title: "Sealed up to offset", number: true, cell: row => row.seals ? figure(row.sealed_to - 1) : "nothing"},
      {title: "Not sealed yet", number: true, cell: row => figure(row.not_sealed)},
      {title: "Last sealed", cell: row => row.sealed ?? "never"},
      {title: "By key", cell: row => h("code", {}, row.key ? row.key.slice(0, 16) : "")},
      {title: "Damaged", cell: row => row.damaged.join("; ")},
      {title: "", cell: row => row.seals ? h("button", {type: "button", "aria-label": `Verify ${row.partition}`,
        onclick: () => verify(row.partition)}, "Verify") : ""}], found.items));
    const trims = await api("/audits", {signal});
    audits.replaceChildren(trims.length ? table("Audits before the last trim of each partition", [
      {title: "Partition", cell: row => row.partition}, {title: "Time", cell: row => row.time},
      {title: "By", cell: row => row.user},
      {title: "Audited up to offset", number: true, cell: row => figure(row.audited_to - 1)},
      {title: "Findings", cell: row => row.findings.length ? h("ul", {class: "error"},
        row.findings.map(each => h("li", {}, each))) : h("span", {class: "good"}, "none")}], trims)
      : h("p", {}, "No part of this history was trimmed, so no audit is kept in it."));
  }

  async function verify(partition) {
    checking?.abort();
    checking = new AbortController();
    const mine = AbortSignal.any([signal, checking.signal]);
    const bar = h("progress", {"aria-label": `Verifying ${partition}`, max: 1, value: 0});
    const harms = [], notes = [];
    let found = {next: 0}, more = 0;
    problem.textContent = "";
    said.replaceChildren(h("p", {}, `Verifying ${partition} …`), bar);
    try {
      while (found.next !== null) {
        const query = new URLSearchParams({next: found.next});
        for (const each of key.value.match(/-----BEGIN[^]*?-----END[^-]*-----/g) ?? (key.value.trim() ? [key.value] : [])) {
          query.append("public_key", each);
        }
        found = await api(`/seals/${where(partition)}/check?${query}`, {signal: mine});
        harms.push(...found.harms);
        notes.push(...found.notes);
        more += found.more;
        bar.max = found.stretches || 1;
        bar.value = found.checked;
      }
    } catch (error) {
      if (error.name !== "AbortError") said.replaceChildren(h("p", {class: "error"}, error.message));
      return;
    }
    said.replaceChildren(
      harms.length ? h("div", {class: "error"}, h("p", {}, `The seals of ${partition} do not hold.`),
        h("ul", {}, harms.map(each => h("li", {}, each.what)), more ? h("li", {}, `${figure(more)} more`) : ""))
        : h("p", {class: "good"}, `All ${figure(found.stretches)} seals of ${partition} hold, `
          + `up to offset ${figure(found.sealed_to - 1)}.`),
      found.signatures ? "" : h("p", {}, "Signatures were not checked: give the public key."),
      notes.length ? h("ul", {}, notes.map(each => h("li", {}, each))) : "");
  }

  main.append(h("h1", {}, "Seals and audits"),
    h("p", {class: "quiet"}, "A seal is a signed statement about a stretch of the history. The broker makes none, and has "
      + "no key. What this page verifies, this node says: a person who doubts the node runs rewindmq verify_seals on another "
      + "machine, with copies of the seals."),
    problem, listed, h("label", {for: "key"}, "Public key (PEM), of the person who seals; several may follow each other"),
    h("div", {}, key), said, h("h2", {}, "Audits"), audits);
  try {
    await load();
  } catch (error) {
    if (error.name !== "AbortError") problem.textContent = error.message;
  }
  return () => ending.abort();
}
