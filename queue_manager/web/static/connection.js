// A Socket.IO 5 client over Engine.IO 4, WebSocket only: the few packets that a listener needs.
//
// Engine.IO   0{…} opened, with the intervals   1 closed   2 ping → 3 pong   4… a Socket.IO packet
// Socket.IO   0{auth} connect → 0{sid}, or 4{message} refused   1 disconnected   2[event, data]   2id[…] → 3id[answer]

const MIN_RETRY_DELAY = 1000; // ms
const MAX_RETRY_DELAY = 10000;

export class Connection {
  /** @param {{ token?: string }} auth @param {ConnectionHandlers} on */
  constructor(auth, on) {
    this.auth = auth;
    this.on = on;
    this.delay = MIN_RETRY_DELAY;
    this.maxSilence = MAX_RETRY_DELAY; // ms; the server pings, so that a longer silence means a dead connection
    this.isRefused = false;
    this.nextId = 0;
    this.socket = this.open();
  }

  open() {
    /** @type {Map<string, (answer: any) => void>} */
    this.answers = new Map();
    const socket = new WebSocket(`${location.origin.replace("http", "ws")}/socket.io/?EIO=4&transport=websocket`);
    socket.onmessage = ({ data }) => this.receive(data);
    socket.onclose = () => this.reconnect();
    return socket;
  }

  /** Resolves with the acknowledgement; never, if the connection ends first. @param {...string} event @returns {Promise<any>} */
  ask(...event) {
    const id = String((this.nextId += 1));
    this.socket.send(`42${id}${JSON.stringify(event)}`);
    return new Promise((resolve) => this.answers.set(id, resolve));
  }

  /** @param {string} packet */
  receive(packet) {
    clearTimeout(this.watch);
    this.watch = setTimeout(() => this.socket.close(), this.maxSilence);
    const [, kind, id, text] = /** @type {RegExpMatchArray} */ (packet.match(/^(4?.)(\d*)(.*)$/s));
    const data = text && JSON.parse(text);
    if (kind === "0") {
      this.maxSilence = data.pingInterval + data.pingTimeout;
      this.socket.send(`40${JSON.stringify(this.auth)}`);
    } else if (kind === "2") this.socket.send("3");
    else if (kind === "40") {
      this.delay = MIN_RETRY_DELAY;
      this.on.live();
    } else if (kind === "42") this.on.event(data[0], data[1]);
    else if (kind === "43") {
      this.answers.get(id)?.(data[0]);
      this.answers.delete(id);
    } else if (kind === "44") this.refuse(data.message);
    else if (kind === "41") this.refuse("The server ended the connection: your access has ended.");
  }

  /** @param {string} message */
  refuse(message) {
    this.isRefused = true;
    this.socket.close();
    this.on.off(message);
  }

  reconnect() {
    clearTimeout(this.watch);
    if (this.isRefused) return;
    this.on.off(`Offline; trying again in ${this.delay / 1000} s`);
    setTimeout(() => (this.socket = this.open()), this.delay);
    this.delay = Math.min(this.delay * 2, MAX_RETRY_DELAY);
  }
}
