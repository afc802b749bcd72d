// The page: shows the view that the address names, and shows it anew when the address changes.
//
// An address is #/queues/%2F/orders?time=2026-11-23T10:00:00Z: a path with encoded names, and options. A view is a
// module in pages/ with `show(main, names, options)`. It may return a function, which is called when the view ends
// (to stop timers and questions). A view changes the address (`go` in address.js) for each state that can be linked to.

import {api, ApiError, whenLoggedOut} from "./api.js";
import {parsed} from "./address.js";
import {h} from "./dom.js";
import * as login from "./pages/login.js";
import {PAGES} from "./pages/pages.js";

const $ = id => document.getElementById(id);
let end = () => {};
let user = null;
let views = 0;  // that were shown
let asking = false;  // the form of the login is shown

function fail(error) {
  if (error?.name === "AbortError") return;
  $("error").textContent = error instanceof ApiError && error.login ? "" : error.message;
}

async function show() {
  end();
  end = () => {};
  const number = ++views;
  $("error").textContent = "";
  const main = $("main");
  const {path, names, options} = parsed(location.hash);
  try {
    user ??= await api("/whoami");
  } catch (error) {
    return error instanceof ApiError && error.login ? undefined : fail(error);  // the form is shown (whenLoggedOut)
  }
  asking = false;
  head();
  const page = PAGES.find(each => each.path === path && each.names === names.length);
  main.replaceChildren();
  document.title = `${page ? [...names, page.title].join(" · ") : "Not found"} · RewindMQ`;
  if (!page) return main.replaceChildren(h("h1", {}, "There is no such page"));
  try {
    const over = await page.view.show(main, names, options, user) ?? (() => {});
    if (number === views) end = over;
    else over();  // the reader has gone on to another view meanwhile
  } catch (error) {
    fail(error);
  }
}

// `reason`: why the login ended.
function askForLogin(reason = "") {
  user = null;
  asking = true;
  $("head").hidden = true;
  end();
  end = () => {};
  login.show($("main"), () => show(), reason);
}

function head() {
  $("head").hidden = false;
  $("user").textContent = user.name;
  unfold(false);
  const here = parsed(location.hash).path;
  $("nav").replaceChildren(...PAGES.filter(each => each.nav).map(each =>
    h("a", {href: "#/" + each.path, "aria-current": here === each.path ? "page" : null}, each.title)));
}

// On a narrow screen the navigation is behind a button.
const unfold = open => $("menu").setAttribute("aria-expanded", String(open));
$("menu").addEventListener("click", () => unfold($("menu").getAttribute("aria-expanded") === "false"));

whenLoggedOut(reason => asking || askForLogin(user ? reason : ""));
$("logout").addEventListener("click", async () => {
  try { await api("/login", {method: "DELETE"}); } catch (error) { fail(error); }
  askForLogin();
});
addEventListener("hashchange", () => show());
addEventListener("unhandledrejection", event => fail(event.reason));
show();
