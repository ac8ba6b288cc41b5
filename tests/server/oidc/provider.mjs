// A certified OpenID Connect provider on a port of this machine, with two people and one client.
// Its keys are made anew at every start. Settings come as JSON in PROVIDER.
import { generateKeyPairSync, randomBytes } from 'node:crypto';
import { Provider } from 'oidc-provider';

const { port, callback, people } = JSON.parse(process.env.PROVIDER);
const { privateKey } = generateKeyPairSync('rsa', { modulusLength: 2048 });
const key = { ...privateKey.export({ format: 'jwk' }), kid: randomBytes(8).toString('hex'), use: 'sig' };

const provider = new Provider(`http://127.0.0.1:${port}`, {
  clients: [{
    client_id: 'spikeguard',
    client_secret: 'a secret of the tests',
    redirect_uris: [callback],
  }],
  claims: { openid: ['sub'], email: ['email', 'email_verified'], groups: ['groups'] },
  scopes: ['openid', 'email', 'groups'],
  jwks: { keys: [key] },
  cookies: { keys: [randomBytes(16).toString('hex')] },
  pkce: { required: () => true },
  findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id, ...people[id] }) }),
});
provider.listen(port, '127.0.0.1', () => console.log('ready'));
