// All pages by the first part of their address. `names`: how many names follow it. `nav`: it is in the navigation.

import * as find from "./find.js";
import * as history from "./history.js";
import * as message from "./message.js";
import * as overview from "./overview.js";
import * as queue from "./queue.js";
import * as queues from "./queues.js";

export const PAGES = [
  {path: "", names: 0, title: "Overview", nav: true, view: overview},
  {path: "queues", names: 0, title: "Queues", nav: true, view: queues},
  {path: "queues", names: 2, title: "Queue", view: queue},
  {path: "find", names: 0, title: "Find", nav: true, view: find},
  {path: "message", names: 2, title: "Message", view: message},
  {path: "history", names: 2, title: "History", view: history},
];
