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
 * It rejects if there is no response.
 */
export function createClient(baseUrl: string, { apiKey, headers, ...options }: Options = {}): Client<paths> {
  const client = createFetchClient<paths>({ baseUrl, headers, ...options });
  if (apiKey !== undefined) {
    client.use({
      onRequest({ request }) {
        request.headers.set("X-API-KEY", apiKey);
      },
    });
  }
  return client;
}
