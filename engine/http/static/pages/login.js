// Asks for user and password, or for a token in the place of the password, and opens a session. `then` is called when
// there is one. Where the broker has an identity provider, a link leads there (sign-in): the broker does the rest, and
// leads back here. `reason`: why the login before ended.

import {api} from "../api.js";
import {h} from "../dom.js";

export function show(main, then, reason) {
  const user = h("input", {id: "login-user", name: "username", autocomplete: "username"});
  const password = h("input", {
    id: "login-password", name: "password", type: "password", autocomplete: "current-password", required: true});
  const refused = h("p", {class: "error", role: "alert"}, reason);
  const provider = h("p", {hidden: true});
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
    h("h1", {}, "Log in"), provider,
    h("label", {for: "login-user"}, "User"), user,
    h("label", {for: "login-password"}, "Password or token"), password,
    refused,
    h("button", {type: "submit"}, "Log in")));
  user.focus();
  offerProvider(provider, refused).catch(error => {
    refused.textContent ||= `Whether there is another way to log in is not known: ${error.message}`;
  });
}

async function offerProvider(place, refused) {
  const ways = await api("/login");
  if (ways.refused) refused.textContent = ways.refused;
  if (!ways.provider) return;
  const query = new URLSearchParams({here: location.origin + location.pathname});
  place.replaceChildren(h("a", {class: "provider", href: "sign-in?" + query}, `Sign in with ${ways.provider}`));
  place.hidden = false;
}
