// Asks the search of a built site, as a browser does: node ask.js SITE QUESTION ... prints a line of JSON for each question.
"use strict";

const fs = require("fs");
const path = require("path");
const vm = require("vm");

const [site, ...questions] = process.argv.slice(2);
const nothing = () => null;
const context = vm.createContext({
  console,
  document: { readyState: "loading", addEventListener: nothing, getElementById: nothing },
  localStorage: { setItem: nothing },
  SPHINX_HIGHLIGHT_ENABLED: false,
  _: (text) => text,
  _ready: nothing,
});
vm.runInContext("var window = globalThis", context);
for (const file of ["_static/language_data.js", "_static/searchtools.js", "_static/tasks.js", "_static/search.js", "searchindex.js"])
  vm.runInContext(fs.readFileSync(path.join(site, file), "utf8"), context, { filename: file });
for (const question of questions) {
  context.question = question;
  const pages = vm.runInContext("Search._performSearch(...Search._parseQuery(question)).reverse().map((each) => each[0])", context);
  console.log(JSON.stringify([...new Set(pages)].slice(0, 10)));
}
