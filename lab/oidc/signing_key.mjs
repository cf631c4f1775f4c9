// A new private RSA key as a JWK.
//
// Not by `export({ format: 'jwk' })`. If Node 20 collects garbage meanwhile, it ends the job that
// made the key. That job needs the lock which the export holds, and Node hangs for ever.
// So the numbers are read from PKCS #1.

import crypto from 'node:crypto';

export function signingKey(modulusLength = 2048) {
  const encoding = { type: 'pkcs1', format: 'der' };
  const { privateKey } = crypto.generateKeyPairSync('rsa', {
    modulusLength, publicKeyEncoding: encoding, privateKeyEncoding: encoding,
  });
  const [, n, e, d, p, q, dp, dq, qi] = integers(privateKey);
  const kid = crypto.randomUUID();
  return { kty: 'RSA', n, e, d, p, q, dp, dq, qi, use: 'sig', alg: 'RS256', kid };
}

// The integers of a DER sequence, each as a JWK writes it.
function integers(der) {
  const found = [];
  for (let [, at] = span(der, 0); at < der.length;) {
    const [length, start] = span(der, at);
    at = start + length;
    const zeros = der[start] === 0 && length > 1 ? 1 : 0; // the sign's, which a JWK leaves out
    found.push(der.toString('base64url', start + zeros, at));
  }
  return found;
}

// The length of the value whose tag is there, and where the value begins.
function span(der, tag) {
  const first = der[tag + 1];
  if (first < 0x80) return [first, tag + 2];
  const bytes = first & 0x7f;
  return [der.readUIntBE(tag + 2, bytes), tag + 2 + bytes];
}
