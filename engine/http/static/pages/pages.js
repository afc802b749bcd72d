// All pages by the first part of their address. `names`: how many names follow it. `nav`: it is in the navigation.

import * as find from "./find.js";
import * as history from "./history.js";
import * as lists from "./lists.js";
import * as message from "./message.js";
import * as overview from "./overview.js";
import * as policies from "./policies.js";
import * as queue from "./queue.js";
import * as seals from "./seals.js";

export const PAGES = [
  {path: "", names: 0, title: "Overview", nav: true, view: overview},
  {path: "queues", names: 0, title: "Queues", nav: true, view: lists.queues},
  {path: "queues", names: 2, title: "Queue", view: queue},
  {path: "find", names: 0, title: "Find", nav: true, view: find},
  {path: "message", names: 2, title: "Message", view: message},
  {path: "history", names: 2, title: "History", view: history},
  {path: "exchanges", names: 0, title: "Exchanges", nav: true, view: lists.exchanges},
  {path: "bindings", names: 0, title: "Bindings", nav: true, view: lists.bindings},
  {path: "connections", names: 0, title: "Connections", nav: true, view: lists.connections},
  {path: "channels", names: 0, title: "Channels", nav: true, view: lists.channels},
  {path: "consumers", names: 0, title: "Consumers", nav: true, view: lists.consumers},
  {path: "policies", names: 0, title: "Policies", nav: true, view: policies.policies},
  {path: "operator-policies", names: 0, title: "Operator policies", nav: true, view: policies.operatorPolicies},
  {path: "users", names: 0, title: "Users", nav: true, view: lists.users},
  {path: "permissions", names: 0, title: "Permissions", nav: true, view: lists.permissions},
  {path: "topic-permissions", names: 0, title: "Topic permissions", nav: true, view: lists.topicPermissions},
  {path: "user-limits", names: 0, title: "Limits of users", nav: true, view: lists.userLimits},
  {path: "vhosts", names: 0, title: "Vhosts", nav: true, view: lists.vhosts},
  {path: "vhost-limits", names: 0, title: "Limits of vhosts", nav: true, view: lists.vhostLimits},
  {path: "quarantine", names: 0, title: "Quarantine", nav: true, view: lists.quarantine},
  {path: "erasures", names: 0, title: "Erasures", nav: true, view: lists.erasures},
  {path: "expired-bodies", names: 0, title: "Expired bodies", nav: true, view: lists.expiredBodies},
  {path: "seals", names: 0, title: "Seals and audits", nav: true, view: seals},
  {path: "nodes", names: 0, title: "Nodes", nav: true, view: lists.nodes},
];
