// A browser's Socket.IO client in one room: `node socketio_client.mjs SERVER_URL ROOM`. It prints what happens to it.

import { io } from "socket.io-client";

const [url, room] = process.argv.slice(2);
const socket = io(url, { reconnectionDelay: 50, reconnectionDelayMax: 50 });

function print(document) {
  console.log(JSON.stringify(document));
}

socket.on("connect", async () => {
  const recovered = Boolean(socket.recovered);
  if (!recovered) await socket.emitWithAck("join", room);
  print({ connected: true, recovered });
});
socket.on("disconnect", () => print({ connected: false }));
socket.onAny((event, data) => print({ event, data }));
