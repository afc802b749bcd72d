// Live figures: the API sends an answer again when it changes (GET api/live/...), over one stream a view.
//
// While the stream brings nothing, the view asks every POLL_MS instead: at a node that has no room for a stream, or behind
// a proxy that holds it back. The stream is tried again every RETRY_MS. A hidden tab has no stream and asks nothing.

import {api} from "./api.js";

const POLL_MS = 5_000, RETRY_MS = 30_000;

// `take(answer)` gets each answer of the API to `path`, `fail(error)` each error. `signal` ends it.
export function live(path, take, fail, signal) {
  let source = null, poll = null, retry = null;
  let streaming = false;  // the stream has brought something

  function close() {
    source?.close();
    source = null;
    streaming = false;
    clearTimeout(poll);
    clearTimeout(retry);
  }

  function listen() {
    close();
    if (document.hidden || signal.aborted) return;
    source = new EventSource("api/live" + path);
    poll = setTimeout(ask, POLL_MS);
    source.addEventListener("figures", event => { came(); take(JSON.parse(event.data)); });
    source.addEventListener("problem", event => { came(); fail(new Error(JSON.parse(event.data).reason)); });
    source.addEventListener("end", lost);
    source.addEventListener("error", lost);
  }

  function came() {
    streaming = true;
    clearTimeout(poll);
  }

  // The stream failed or ended. The API says why: the user may be logged out.
  function lost() {
    close();
    ask();
    retry = setTimeout(listen, RETRY_MS);
  }

  async function ask() {
    clearTimeout(poll);
    try {
      take(await api(path, {signal}));
    } catch (error) {
      if (error.name === "AbortError" || error.login) return close();
      fail(error);
    }
    if (!streaming && !document.hidden && !signal.aborted) poll = setTimeout(ask, POLL_MS);
  }

  document.addEventListener("visibilitychange", () => document.hidden ? close() : listen(), {signal});
  signal.addEventListener("abort", close);
  listen();
}
