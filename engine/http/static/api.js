// Asks the management API of this node. A session cookie says who asks (POST api/login).

import {h} from "./dom.js";

// `login`: a login would help.
export class ApiError extends Error {
  constructor(status, reason, login) {
    super(reason);
    this.status = status;
    this.login = login;
  }
}

let onLoggedOut = () => {};

// `then` is called with the reason when an answer says that nobody is logged in.
export function whenLoggedOut(then) {
  onLoggedOut = then;
}

// The answer of the API as JSON; null where it has no content. Throws ApiError, whose message is for people.
// `path` is below /api: api("/queues/" + where("/", "orders")). `options`: method, body (made JSON), signal,
// and the reason for the history. The user is asked for one if the broker wants it.
export async function api(path, {method = "GET", body, signal, why} = {}) {
  const answer = await fetch("api" + path, {
    method, signal,
    headers: {"x-requested-with": "page", ...(body === undefined ? {} : {"content-type": "application/json"}),
      ...(why ? {"x-reason": String.fromCharCode(...new TextEncoder().encode(why))} : {})},
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  const text = await answer.text();
  let content = null;
  try { content = text === "" ? null : JSON.parse(text); } catch { /* its status says what is wrong */ }
  if (answer.ok) return content;
  const login = answer.status === 401 && answer.headers.has("www-authenticate");  // else a right is missing
  const reason = content?.reason || `${answer.status} ${answer.statusText}`;
  if (content?.error === "reason_required" && !why) {
    const told = await reasonAsked();
    if (told) return api(path, {method, body, signal, why: told});
  }
  if (login && path !== "/login") onLoggedOut(reason);
  throw new ApiError(answer.status, reason, login);
}

// Asks the user why. The reason; "" if there is none.
const reasonAsked = () => new Promise(done => {
  const reason = h("input", {required: true, maxlength: 250, "aria-label": "Reason"});
  const dialog = h("dialog", {"aria-label": "Say why", onclose: () => { dialog.remove(); done(dialog.returnValue); }},
    h("form", {onsubmit: event => { event.preventDefault(); dialog.close(reason.value); }},
      h("p", {}, "Why? This broker wants a reason, and the history keeps it."), reason, h("button", {}, "Go on")));
  document.body.append(dialog);
  dialog.showModal();
});

// Names as a part of a path: where("/", "a b") is "%2F/a%20b".
export const where = (...names) => names.map(encodeURIComponent).join("/");
