// Makes requests that a proxy answers instead of the API, and prints what it reads, as one JSON document.

import { createServer, type RequestListener } from "node:http";
import type { AddressInfo } from "node:net";

import { createClient } from "../src/index.ts";

async function serve(respond: RequestListener): Promise<string> {
  const server = createServer(respond).unref();
  await new Promise<void>((listening) => server.listen(0, "127.0.0.1", listening));
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

function add(url: string) {
  return createClient(url, { apiKey: "the key" }).POST("/api/queue/message", { body: { type: "mail" } });
}

let followed = 0;
const other = await serve((_, response) => {
  followed += 1;
  response.writeHead(200, { "Content-Type": "application/json" }).end('{"id": "a message of another host"}');
});
const redirected: Record<number, string> = {};
for (const status of [301, 302, 303, 307, 308]) {
  const url = await serve((request, response) => {
    response.writeHead(status, { Location: `${other}${request.url}` }).end();
  });
  redirected[status] = await add(url).then(
    () => "resolved",
    (error: Error) => String((error.cause as Error).message),
  );
}

const refused: string[] = [];
for (const [url, apiKey] of [
  [other, "the key\nand more"],
  [other.replace("//", "//ada:the-password@"), "the key"],
] as const) {
  try {
    await createClient(url, { apiKey }).GET("/api/overview");
  } catch (error) {
    refused.push(String(error));
  }
}

const pages: [number, string, string][] = [
  [502, "text/html", "<html>Bad Gateway</html>"],
  [503, "text/plain", ""],
  [429, "application/json", '{"detail": "slow down"}'],
  [422, "application/json", '{"error": "invalid", "message": "type: is missing", "field": "type"}'],
];
const errors: unknown[] = [];
for (const [status, type, body] of pages) {
  const url = await serve((_, response) => {
    const headers = { "Content-Type": type, "Content-Length": body.length, "Retry-After": "7" };
    response.writeHead(status, headers).end(body);
  });
  const { data, error, response } = await add(url);
  errors.push({ status: response.status, retryAfter: response.headers.get("Retry-After"), data, ...error });
}

console.log(JSON.stringify({ redirected, refused, followed, errors }));
