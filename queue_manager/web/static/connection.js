// A Socket.IO 5 client over Engine.IO 4, WebSocket only: the few packets that a listener needs.
//
// Engine.IO   0{…} opened, with the intervals   1 closed   2 ping → 3 pong   4… a Socket.IO packet
// Socket.IO   0{auth} connect → 0{sid}, or 4{message} refused   1 disconnected   2[event, data]   2id[…] → 3id[answer]

const FIRST_PAUSE = 1000;
const LONGEST_PAUSE = 10000;

export class Connection {
  /** @param {{ token?: string }} auth @param {ConnectionHandlers} on */
  constructor(auth, on) {
    this.auth = auth;
    this.on = on;
    this.pause = FIRST_PAUSE;
    this.nextId = 0;
    this.isRefused = false;
    this.silence = LONGEST_PAUSE;
    this.watch = 0;
    this.socket = this.open();
  }

  open() {
    const scheme = location.protocol === "https:" ? "wss:" : "ws:";
    /** @type {Map<number, (answer: any) => void>} */
    this.answers = new Map();
    const socket = new WebSocket(`${scheme}//${location.host}/socket.io/?EIO=4&transport=websocket`);
    socket.onmessage = (message) => this.receive(message.data);
    socket.onclose = () => this.comeBack();
    return socket;
  }

  /** Resolves with the acknowledgement; never, if the connection ends first. @param {...string} event @returns {Promise<any>} */
  ask(...event) {
    this.nextId += 1;
    this.socket.send(`42${this.nextId}${JSON.stringify(event)}`);
    return new Promise((resolve) => this.answers.set(this.nextId, resolve));
  }

  /** @param {string} packet */
  receive(packet) {
    this.expectMore();
    const kind = packet[0] === "4" ? packet.slice(0, 2) : packet[0];
    const rest = packet.slice(kind.length);
    if (kind === "0") this.greet(JSON.parse(rest));
    else if (kind === "2") this.socket.send("3");
    else if (kind === "40") this.welcome();
    else if (kind === "42") this.on.event(.../** @type {[string, any]} */ (JSON.parse(rest.slice(rest.indexOf("[")))));
    else if (kind === "43") this.answer(rest);
    else if (kind === "44") this.refuse(JSON.parse(rest).message);
    else if (kind === "41") this.refuse("The server ended the connection: your access has ended.");
  }

  /** @param {{ pingInterval: number, pingTimeout: number }} intervals */
  greet({ pingInterval, pingTimeout }) {
    this.silence = pingInterval + pingTimeout;
    this.socket.send(`40${JSON.stringify(this.auth)}`);
  }

  welcome() {
    this.pause = FIRST_PAUSE;
    this.on.live();
  }

  /** @param {string} rest */
  answer(rest) {
    const id = parseInt(rest, 10);
    this.answers.get(id)?.(JSON.parse(rest.slice(rest.indexOf("[")))[0]);
    this.answers.delete(id);
  }

  /** @param {string} message */
  refuse(message) {
    this.isRefused = true;
    this.socket.close();
    this.on.refused(message);
  }

  // The server pings: a connection that is silent for longer is dead.
  expectMore() {
    clearTimeout(this.watch);
    this.watch = setTimeout(() => this.socket.close(), this.silence);
  }

  comeBack() {
    clearTimeout(this.watch);
    if (this.isRefused) return;
    this.on.off(`Offline; trying again in ${this.pause / 1000} s`);
    setTimeout(() => (this.socket = this.open()), this.pause);
    this.pause = Math.min(this.pause * 2, LONGEST_PAUSE);
  }
}
