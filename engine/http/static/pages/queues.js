// queues

import {h} from "../dom.js";

export async function show(main, names, options, user) {
  main.append(h("h1", {}, "Queues"));
}
