// Asks the management API of this node. A session cookie says who asks (POST api/login).

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
// `path` is below /api: api("/queues/" + where("/", "orders")). `options`: method, body (made JSON), signal.
export async function api(path, {method = "GET", body, signal} = {}) {
  const answer = await fetch("api" + path, {
    method, signal,
    headers: {"x-requested-with": "page", ...(body === undefined ? {} : {"content-type": "application/json"})},
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  const text = await answer.text();
  let content = null;
  try { content = text === "" ? null : JSON.parse(text); } catch { /* its status says what is wrong */ }
  if (answer.ok) return content;
  const login = answer.status === 401 && answer.headers.has("www-authenticate");  // else a right is missing
  const reason = content?.reason || `${answer.status} ${answer.statusText}`;
  if (login && path !== "/login") onLoggedOut(reason);
  throw new ApiError(answer.status, reason, login);
}

// Names as a part of a path: where("/", "a b") is "%2F/a%20b".
export const where = (...names) => names.map(encodeURIComponent).join("/");
