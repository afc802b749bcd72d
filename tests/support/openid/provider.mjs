// An OpenID provider (oidc-provider, certified by the OpenID Foundation) on loopback, for tests.
//
//   node provider.mjs PORT ISSUER CLIENT REDIRECT BRIEF SECRET BRIEF_SECONDS     prints "ready" when it listens
//
// Anybody logs in, with any password; the name is the user. Tokens for the broker are JWTs with the scopes that were
// asked for. "stranger" gets tokens of another audience, those of BRIEF are valid for BRIEF_SECONDS. BRIEF is also
// a service that logs in with SECRET (client credentials).

import {createRequire} from "node:module";

const require = createRequire(new URL("./target/", import.meta.url));
const {Provider} = await import(require.resolve("oidc-provider"));
const [port, issuer, client, redirect, BRIEF, SECRET, BRIEF_SECONDS] = process.argv.slice(2);
const brief = (context, token) => (token.accountId ?? token.clientId) === BRIEF ? Number(BRIEF_SECONDS) : 300;
const SCOPES = "rabbitmq.tag:administrator rabbitmq.configure:*/* rabbitmq.read:*/* rabbitmq.write:*/*";

const provider = new Provider(issuer, {
  clients: [{
    client_id: client, redirect_uris: [redirect], token_endpoint_auth_method: "none",
    response_types: ["code"], grant_types: ["authorization_code"],
  }, {
    client_id: BRIEF, client_secret: SECRET, redirect_uris: [], response_types: [],
    grant_types: ["client_credentials"], token_endpoint_auth_method: "client_secret_basic",
  }],
  scopes: ["openid", "profile", ...SCOPES.split(" ")],
  claims: {openid: ["sub"], profile: ["name"]},
  pkce: {required: () => true},
  cookies: {keys: ["a key for tests"]},
  features: {
    clientCredentials: {enabled: true},
    devInteractions: {enabled: true},
    resourceIndicators: {
      enabled: true,
      defaultResource: () => "urn:broker",
      useGrantedResource: () => true,
      getResourceServerInfo: context => ({
        scope: SCOPES,
        audience: context.oidc.account?.accountId === "stranger" ? "elsewhere" : "rabbitmq",
        accessTokenFormat: "jwt",
        jwt: {sign: {alg: "RS256"}},
      }),
    },
  },
  ttl: {
    AccessToken: brief, ClientCredentials: brief,
    AuthorizationCode: 60, IdToken: 300, Interaction: 600, Session: 600, Grant: 600,
  },
  findAccount: (context, id) => ({accountId: id, claims: () => ({sub: id, name: id})}),
});
provider.listen(Number(port), "127.0.0.1", () => console.log("ready"));
