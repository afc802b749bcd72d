// Reads and makes addresses of views: #/queues/%2F/orders?time=...

// {path: "queues", names: ["/", "orders"], options: {time: "..."}} of location.hash.
export function parsed(hash) {
  const [way, query = ""] = hash.replace(/^#\/?/, "").split("?");
  const [path, ...names] = way.split("/");
  return {path, names: names.map(decoded), options: Object.fromEntries(new URLSearchParams(query))};
}

// The address of a view. Options that are null or undefined are left out.
export function address(path, names = [], options = {}) {
  const given = Object.entries(options).filter(([, value]) => value != null);
  const query = new URLSearchParams(given).toString();
  return "#/" + [path, ...names.map(encodeURIComponent)].join("/") + (query && "?" + query);
}

// Notes the state of the view in the address, without showing the view anew. A link to it opens the same state.
export function note(path, names, options) {
  history.replaceState(null, "", address(path, names, options));
}

function decoded(text) {
  try { return decodeURIComponent(text); } catch { return text; }
}
