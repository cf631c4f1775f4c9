// The identity provider of the lab: the certified oidc-provider with the lab's people in it.
//
//   node provider.mjs PORT [ACCESS_TOKEN_TTL_S]
//
// Any password is right, nothing is kept over a restart, and it listens on loopback only. Beside
// the protocol it has three doors for tests, none of which a real provider has:
//   POST /lab/rotate        a new signing key; the old ones stay published
//   POST /lab/retire        forget all keys but the newest
//   POST /lab/ttl/SECONDS   lifetime of access tokens issued from now on

import crypto from 'node:crypto';
import http from 'node:http';
import { Provider } from 'oidc-provider';

import { signingKey } from './signing_key.mjs';

const port = Number(process.argv[2] ?? 24000);
const issuer = `http://127.0.0.1:${port}`;
let accessTokenTtlS = Number(process.argv[3] ?? 600);

const RESOURCE = 'urn:lattice:api'; // a resource indicator must be a URI; the audience need not
const DAY_S = 86400;
const AUDIENCE = 'lattice-api'; // not the client: an ID token is no access token

// Everybody may ask for these. Role scopes go only to those the table names, and a scope someone
// is not entitled to is left out of the token without an error, as most providers do it.
const OPEN_SCOPES = ['allocations:read', 'allocations:attach', 'allocations:write', 'readonly'];
const ROLE_SCOPES = [
  'admin', 'system:admin', 'tenant:admin', 'operator', 'sensitive:claim', 'compliance:review',
];
const ACCOUNTS = {
  alice: { scopes: ['sensitive:claim'], claims: {} },
  bob: { scopes: [], claims: {} },
  carol: { scopes: ['tenant:admin'], claims: { tenant: 'biology' } },
  dave: { scopes: ['sensitive:claim'], claims: {} },
  erin: { scopes: ['sensitive:claim', 'operator'], claims: {} },
  // No Unix account: these only govern.
  olga: { scopes: ['admin', 'system:admin'], claims: {} },
  oscar: { scopes: ['operator'], claims: {} },
  quinn: { scopes: ['compliance:review'], claims: { tenant: 'biology' } },
};

const CLIENTS = [
  {
    client_id: 'lattice',
    application_type: 'native',
    token_endpoint_auth_method: 'none',
    redirect_uris: ['http://127.0.0.1/callback'], // a native client's loopback port is free
    response_types: ['code'],
    grant_types: [
      'authorization_code',
      'refresh_token',
      'urn:ietf:params:oauth:grant-type:device_code',
    ],
  },
  {
    client_id: 'robot',
    client_secret: 'robot-secret',
    redirect_uris: [],
    response_types: [],
    grant_types: ['client_credentials'],
  },
];

// oidc-provider's own memory belongs to one Provider object. This one outlives it, because new
// keys need a new Provider and nobody should be logged out by that.
const memory = new Map();

class Memory {
  constructor(model) { this.model = model; }

  key(id) { return `${this.model}:${id}`; }

  async upsert(id, payload) { memory.set(this.key(id), payload); }

  async find(id) { return memory.get(this.key(id)); }

  async findByUid(uid) { return this.#first((payload) => payload.uid === uid); }

  async findByUserCode(code) { return this.#first((payload) => payload.userCode === code); }

  async consume(id) { memory.get(this.key(id)).consumed = Math.floor(Date.now() / 1000); }

  async destroy(id) { memory.delete(this.key(id)); }

  async revokeByGrantId(grantId) {
    for (const [key, payload] of memory) if (payload.grantId === grantId) memory.delete(key);
  }

  #first(matches) {
    for (const [key, payload] of memory) {
      if (key.startsWith(`${this.model}:`) && matches(payload)) return payload;
    }
    return undefined;
  }
}

const keys = [signingKey()];
const cookieKeys = [crypto.randomUUID()];
let provider;
let answer;

function build() {
  provider = new Provider(issuer, {
    adapter: Memory,
    jwks: { keys },
    cookies: { keys: cookieKeys },
    clients: CLIENTS,
    scopes: ['openid', 'offline_access'],
    discovery: { scopes_supported: ['openid', 'offline_access', ...OPEN_SCOPES, ...ROLE_SCOPES] },
    pkce: { required: () => true },
    rotateRefreshToken: true,
    ttl: {
      AccessToken: () => accessTokenTtlS,
      ClientCredentials: () => accessTokenTtlS,
      AuthorizationCode: 60,
      DeviceCode: 600,
      IdToken: 600,
      Interaction: 600,
      Session: DAY_S,
      Grant: 14 * DAY_S,
      RefreshToken: 14 * DAY_S,
    },
    interactions: { url: (ctx, interaction) => `/interaction/${interaction.uid}` },
    features: {
      devInteractions: { enabled: false },
      deviceFlow: { enabled: true },
      clientCredentials: { enabled: true },
      revocation: { enabled: true },
      resourceIndicators: {
        enabled: true,
        defaultResource: () => RESOURCE,
        useGrantedResource: () => true,
        getResourceServerInfo: (ctx, resource, client) => ({
          scope: [...OPEN_SCOPES, ...(client.clientId === 'robot' ? [] : ROLE_SCOPES)].join(' '),
          audience: AUDIENCE,
          accessTokenFormat: 'jwt',
          accessTokenTTL: accessTokenTtlS,
          jwt: { sign: { alg: 'RS256', kid: keys[0].kid } },
        }),
      },
    },
    findAccount: (ctx, id) => ACCOUNTS[id] && { accountId: id, claims: () => claimsOf(id) },
    extraTokenClaims: (ctx, token) => (token.accountId ? claimsOf(token.accountId) : undefined),
  });
  provider.on('server_error', (ctx, error) => console.error('server_error', error));
  answer = provider.callback();
}

function claimsOf(id) {
  return { sub: id, preferred_username: id, ...ACCOUNTS[id].claims };
}

// One page for sign-in and consent. A form that names nobody is one of somebody already known.
async function interaction(request, response) {
  const details = await provider.interactionDetails(request, response);
  if (request.method !== 'POST') return page(response, details);
  const form = new URLSearchParams(await body(request));
  if (form.has('refuse')) {
    const refusal = { error: 'access_denied', error_description: 'refused by the user' };
    return provider.interactionFinished(request, response, refusal);
  }
  const id = form.get('login') ?? details.session?.accountId;
  if (!ACCOUNTS[id]) return page(response, details, 'No such account.', 403);
  const consent = { grantId: await grant(id, details.params) };
  const result = { login: { accountId: id }, consent };
  return provider.interactionFinished(request, response, result);
}

async function grant(accountId, params) {
  const given = new provider.Grant({ accountId, clientId: params.client_id });
  const entitled = new Set([...OPEN_SCOPES, ...ACCOUNTS[accountId].scopes]);
  for (const scope of (params.scope ?? '').split(' ').filter(Boolean)) {
    if (scope === 'openid' || scope === 'offline_access') given.addOIDCScope(scope);
    else if (entitled.has(scope)) given.addResourceScope(RESOURCE, scope);
    else given.rejectResourceScope(RESOURCE, scope);
  }
  return given.save();
}

function page(response, details, message = '', status = 200) {
  const known = details.prompt.name === 'consent' && details.session?.accountId;
  const who = known
    ? `<p>Signed in as ${known}.</p>`
    : `<p><input name="login" placeholder="user" autofocus required>
       <input name="password" type="password" placeholder="any password"></p>`;
  const scopes = String(details.params.scope ?? '').replace(/[<>&"]/g, '');
  response.writeHead(status, { 'content-type': 'text/html; charset=utf-8' });
  response.end(`<!doctype html><title>Lattice lab sign-in</title>
    <h1>Lattice lab</h1><p role="alert">${message}</p>
    <form method="post" action="/interaction/${details.uid}">${who}
    <p>${details.params.client_id} asks for: ${scopes}</p>
    <button>Continue</button> <button name="refuse" value="1" formnovalidate>Refuse</button>
    </form>`);
}

async function body(request) {
  let text = '';
  for await (const chunk of request) text += chunk;
  return text;
}

function door(url, response) {
  const [, , name, value] = url.split('/');
  if (name === 'rotate') keys.unshift(signingKey());
  else if (name === 'retire') keys.length = 1;
  else if (name === 'ttl' && Number(value) > 0) accessTokenTtlS = Number(value);
  else return response.writeHead(404).end();
  build();
  return response.writeHead(200).end(keys[0].kid);
}

async function serve(request, response) {
  if (request.method === 'POST' && request.url.startsWith('/lab/')) {
    return door(request.url, response);
  }
  if (request.url.startsWith('/interaction/')) return interaction(request, response);
  return answer(request, response);
}

build();
http.createServer((request, response) => {
  serve(request, response).catch((error) => {
    console.error(error);
    response.writeHead(error.statusCode ?? 500).end(String(error.message));
  });
}).listen(port, '127.0.0.1', () => console.log(`identity provider at ${issuer}`));
