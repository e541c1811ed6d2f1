/** A client of the HTTP API of Queue Manager. `schema.ts` is generated from the API's OpenAPI description. */

import createFetchClient, { type Client, type ClientOptions } from "openapi-fetch";

import type { components, paths } from "./schema.js";

/** The types of bodies, such as `Schemas["NewMessageBody"]`. */
export type Schemas = components["schemas"];

export interface Options extends Omit<ClientOptions, "baseUrl"> {
  /** A key of `QM_API_KEYS`. */
  apiKey?: string;
}

/**
 * Return a client of the API at `baseUrl`: `client.POST("/api/jobs", { body })`.
 *
 * A call resolves to `{ data, error, response }`; `error` is `{ error, message, field? }` if the request was refused.
 * It rejects if there is no response, and if the response is a redirect, which the API does not need.
 */
export function createClient(baseUrl: string, { apiKey, headers, ...options }: Options = {}): Client<paths> {
  // By default, fetch would send the key to any host that a redirect names, and turn a POST into a GET: adding a message
  // would receive another one.
  const client = createFetchClient<paths>({ baseUrl, headers, redirect: "error", ...options });
  if (apiKey !== undefined) {
    client.use({
      onRequest({ request }) {
        request.headers.set("X-API-KEY", apiKey);
      },
    });
  }
  return client;
}
