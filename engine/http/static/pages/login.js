// Asks for user and password, or for a token in the place of the password, and opens a session. `then` is called when
// there is one.

import {api} from "../api.js";
import {h} from "../dom.js";

export function show(main, then) {
  const user = h("input", {id: "login-user", name: "username", autocomplete: "username"});
  const password = h("input", {
    id: "login-password", name: "password", type: "password", autocomplete: "current-password", required: true});
  const refused = h("p", {class: "error", role: "alert"});
  async function submit(event) {
    event.preventDefault();
    try {
      await api("/login", {method: "POST", body: {username: user.value, password: password.value}});
    } catch (error) {
      refused.textContent = error.message;
      password.value = "";
      return password.focus();
    }
    then();
  }
  main.replaceChildren(h("form", {class: "login", onsubmit: submit},
    h("h1", {}, "Log in"),
    h("label", {for: "login-user"}, "User"), user,
    h("label", {for: "login-password"}, "Password or token"), password,
    refused,
    h("button", {type: "submit"}, "Log in")));
  user.focus();
}
