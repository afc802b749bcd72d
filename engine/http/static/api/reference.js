// The reference of the HTTP API: what openapi.json says, for people. It needs no login.

import {h, table} from "../dom.js";

const $ = id => document.getElementById(id);
let reference;

// An item of the document, or what it refers to.
const resolved = item => item.$ref ? item.$ref.slice(2).split("/").reduce((at, name) => at[name], reference) : item;

// A type in few words. The name of a type is a link to it.
function type(schema) {
  if (schema.$ref) {
    const name = schema.$ref.split("/").pop();
    return [h("a", {href: "#" + name}, name)];
  }
  if (schema.enum) return [schema.enum.map(each => JSON.stringify(each)).join(" or ")];
  if (schema.anyOf) return schema.anyOf.flatMap((each, number) => number ? [" or ", ...type(each)] : type(each));
  if (schema.type === "array") return ["list of ", ...type(schema.items)];
  if (schema.type === "object" && schema.properties?.items) return ["a page with items: ", ...type(schema.properties.items)];
  if (schema.type === "object" && schema.additionalProperties) return ["object of ", ...type(schema.additionalProperties)];
  return [schema.type === undefined ? "any value" : [schema.type].flat().join(" or ")];
}

const needed = (names, name) => names?.includes(name) ? "yes" : "";

function parameters(operation) {
  const rows = (operation.parameters ?? []).map(resolved);
  return rows.length ? table("Parameters", [
    {title: "Name", cell: each => h("code", {}, each.name)}, {title: "In", cell: each => each.in},
    {title: "Type", cell: each => type(each.schema)}, {title: "Required", cell: each => each.required ? "yes" : ""},
    {title: "", cell: each => each.description}], rows) : null;
}

function answers(operation) {
  const rows = Object.entries(operation.responses).map(([status, item]) => ({status, ...resolved(item)}));
  const content = each => Object.entries(each.content ?? {}).flatMap(([media, {schema}]) =>
    media === "application/json" ? type(schema) : [media]);
  return table("Answers", [{title: "Status", number: true, cell: each => each.status},
    {title: "", cell: each => each.description}, {title: "Content", cell: content}], rows);
}

function shown(method, path, operation) {
  const body = operation.requestBody?.content["application/json"].schema;
  return h("details", {id: operation.operationId},
    h("summary", {}, h("code", {}, `${method.toUpperCase()} ${path}`), " ", operation.summary),
    operation.description ? h("p", {}, operation.description) : null,
    operation.security?.length === 0 ? h("p", {}, "It needs no login.") : null,
    parameters(operation),
    body ? h("p", {}, "Body: ", type(body), operation.requestBody.required ? "" : ", or nothing") : null,
    answers(operation));
}

function described([name, schema]) {
  const fields = Object.entries(schema.properties ?? {});
  return h("details", {id: name}, h("summary", {}, h("code", {}, name)), schema.description ? h("p", {}, schema.description) : null,
    table(`Fields of ${name}`, [{title: "Field", cell: each => h("code", {}, each[0])}, {title: "Type", cell: each => type(each[1])},
      {title: "Always", cell: each => needed(schema.required, each[0])},
      {title: "", cell: each => each[1].description ?? ""}], fields));
}

function group(tag) {
  const found = Object.entries(reference.paths).flatMap(([path, methods]) =>
    Object.entries(methods).filter(([, operation]) => operation.tags[0] === tag).map(each => [each[0], path, each[1]]));
  return h("section", {id: "of-" + tag}, h("h2", {}, tag), found.map(each => shown(...each)));
}

// Only the operations whose path or summary has this text.
function choose(text) {
  const wanted = text.toLowerCase();
  for (const each of document.querySelectorAll("main section[id^=of-] details")) {
    each.hidden = !each.querySelector("summary").textContent.toLowerCase().includes(wanted);
  }
  for (const each of document.querySelectorAll("main section[id^=of-]")) {
    each.hidden = !each.querySelector("details:not([hidden])");
  }
}

// Opens and shows what the address names.
function unfold() {
  const named = location.hash && document.getElementById(location.hash.slice(1));
  if (!named) return;
  if (named.tagName === "DETAILS") named.open = true;
  named.scrollIntoView();
}

try {
  const answer = await fetch("openapi.json");
  if (!answer.ok) throw new Error(`openapi.json: ${answer.status} ${answer.statusText}`);
  reference = await answer.json();
  const tags = reference.tags.map(each => each.name);
  $("nav").append(...tags.map(tag => h("a", {href: "#of-" + tag}, tag)), h("a", {href: "#types"}, "types"));
  $("main").append(h("div", {},
    h("h1", {}, `HTTP API of ${reference.info.title} ${reference.info.version}`),
    reference.info.description.trim().split("\n\n").map(text => h("p", {}, text)),
    h("p", {}, "As a document for programs: ", h("a", {href: "openapi.json"}, "openapi.json"), ", OpenAPI ", reference.openapi, "."),
    h("p", {class: "field"}, h("label", {for: "wanted"}, "Path or word"),
      h("input", {id: "wanted", type: "search", oninput: event => choose(event.target.value)})),
    tags.map(group),
    h("section", {id: "types"}, h("h2", {}, "Types"), Object.entries(reference.components.schemas).map(described))));
  addEventListener("hashchange", unfold);
  unfold();
} catch (error) {
  $("error").textContent = error.message;
}
