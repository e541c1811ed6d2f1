// A Socket.IO server of an older application: `node socketio_server.mjs ADAPTER LIBRARY REDIS_URL PORT`.
// Clients join the room that they name. It prints {"listening": true} once it receives the events of other
// processes, and closes on the line "close".

import { createServer } from "node:http";
import { createInterface } from "node:readline";
import { createAdapter } from "@socket.io/redis-adapter";
import { createAdapter as createStreamsAdapter } from "@socket.io/redis-streams-adapter";
import { Redis } from "ioredis";
import { createClient } from "redis";
import { Server } from "socket.io";

const [adapter, library, url, port] = process.argv.slice(2);
const name = `${adapter}-${process.pid}`;

async function connect() {
  if (library === "ioredis") return new Redis(url, { connectionName: name });
  const client = createClient({ url, name });
  await client.connect();
  return client;
}

async function adapterOf(client) {
  if (adapter === "redis-streams") return createStreamsAdapter(client);
  const subscriber = client.duplicate();
  if (library === "redis") await subscriber.connect();
  return createAdapter(client, subscriber);
}

async function isReceiving(client) {
  const command = ["CLIENT", "LIST"];
  const list = library === "redis" ? await client.sendCommand(command) : await client.call(...command);
  const own = list.split("\n").filter((line) => line.includes(` name=${name} `));
  return own.some((line) => line.includes(" cmd=xread ") || line.includes(" psub=1 "));
}

const client = await connect();
const http = createServer();
const io = new Server(http, {
  adapter: await adapterOf(client),
  connectionStateRecovery: adapter === "redis-streams" ? {} : undefined,
});
io.on("connection", (socket) => {
  socket.on("join", (room, done) => {
    socket.join(room);
    done();
  });
});
while (!(await isReceiving(client))) await new Promise((resolve) => setTimeout(resolve, 20));
http.listen(Number(port), "127.0.0.1", () => console.log(JSON.stringify({ listening: true })));

createInterface({ input: process.stdin }).on("line", async (line) => {
  if (line !== "close") return;
  await io.close();
  await client.quit();
  console.log(JSON.stringify({ closed: true }));
  process.exit();
});
