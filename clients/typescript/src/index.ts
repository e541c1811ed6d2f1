/** A client of the HTTP API of Queue Manager. `schema.ts` is generated from the API's OpenAPI description. */

import createFetchClient, { type Client, type ClientOptions } from "openapi-fetch";

import type { components, paths } from "./schema.js";

/** The types of bodies, such as `Schemas["NewMessageBody"]`. */
export type Schemas = components["schemas"];

const MAX_QUOTED_LENGTH = 200; // characters of a response that is not the API's

export interface Options extends Omit<ClientOptions, "baseUrl"> {
  /** A key of `QM_API_KEYS`. */
  apiKey?: string;
}

/**
 * Return an error of another program, such as a proxy, in the form of the API's errors, and nothing for one of the API.
 *
 * Without it, `error` would be a page, or missing if the response has no body: taken for a success.
 */
async function toApiError(response: Response): Promise<Response | undefined> {
  if (response.status < 400) return undefined;
  const text = await response.clone().text();
  try {
    const { error, message } = JSON.parse(text);
    if (typeof error === "string" && typeof message === "string") return undefined;
  } catch {
    // not JSON: usually a page
  }
  const error: Schemas["Error"] = {
    error: response.statusText.toLowerCase() || String(response.status), // HTTP/2 has no status texts
    message: text.slice(0, MAX_QUOTED_LENGTH) || `The response has the status ${response.status} and no body`,
  };
  const headers = new Headers(response.headers);
  headers.set("Content-Type", "application/json");
  for (const name of ["Content-Length", "Content-Encoding"]) headers.delete(name);
  const { status, statusText } = response;
  return new Response(JSON.stringify(error), { status, statusText, headers });
}

/**
 * Return a client of the API at `baseUrl`: `client.POST("/api/jobs", { body })`.
 *
 * It throws a `TypeError` if the key contains a line break, or the address a user or a password.
 *
 * A call resolves to `{ data, error, response }`; `error` is `{ error, message, field? }` if the request failed. It rejects
 * if there is no response, and if the response is a redirect, which the API does not need.
 */
export function createClient(baseUrl: string, { apiKey, headers, ...options }: Options = {}): Client<paths> {
  // The errors of fetch would quote the key or the password.
  if (/[\0\r\n]/.test(apiKey?.trim() ?? "")) throw new TypeError("apiKey: must not contain a line break");
  if (/^\s*\w+:[\\/]+[^?#]*@/.test(baseUrl)) throw new TypeError("baseUrl: must not contain a user or a password");
  // By default, fetch would send the key to any host that a redirect names, and turn a POST into a GET: adding a message
  // would receive another one.
  const client = createFetchClient<paths>({ baseUrl, headers, redirect: "error", ...options });
  client.use({ onResponse: ({ response }) => toApiError(response) });
  if (apiKey !== undefined) {
    client.use({
      onRequest({ request }) {
        request.headers.set("X-API-KEY", apiKey);
      },
    });
  }
  return client;
}
