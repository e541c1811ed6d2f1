// Draws values that change all the time without keeping the browser busy.

const MAX_SHARE = 0.04; // of a core
export const MAX_REST = 10000; // ms after a slow call
const HIDDEN_INTERVAL = 250; // ms between two drawings of a hidden page, which has no frames

/** Draw with the next frame. @param {() => void} draw */
export function nextFrame(draw) {
  if (document.hidden) setTimeout(draw, HIDDEN_INTERVAL);
  else requestAnimationFrame(draw);
}

/**
 * Return a function that calls `act`: soon, `interval` ms after the last call ended, and only while the page is visible, or
 * also while it is hidden with `whileHidden`. After a slow call it waits `rest` times as long as that took, up to `MAX_REST`.
 * @param {() => Promise<unknown>} act @param {number} interval @param {{ rest?: number, whileHidden?: boolean }} [options]
 */
export function seldom(act, interval, { rest = 0, whileHidden = false } = {}) {
  let isWanted = false;
  let isResting = false;
  async function run() {
    if (!isWanted || isResting || (document.hidden && !whileHidden)) return;
    isWanted = false;
    isResting = true;
    const began = performance.now();
    try {
      await act();
    } finally {
      setTimeout(() => {
        isResting = false;
        run();
      }, Math.max(interval, Math.min(rest * (performance.now() - began), MAX_REST)));
    }
  }
  document.addEventListener("visibilitychange", run);
  return () => {
    isWanted = true;
    run();
  };
}

export class Pace {
  constructor() {
    this.until = 0;
  }

  /** Draw, then pause in proportion to the time that drawing took, including the layout. @param {() => void} draw */
  draw(draw) {
    const began = performance.now();
    draw();
    document.body.getBoundingClientRect(); // lays the page out now instead of with the frame
    this.until = Math.max(this.until, began) + (performance.now() - began) / MAX_SHARE;
  }

  /** The ms until it may draw again. */
  get rest() {
    return Math.max(0, this.until - performance.now());
  }
}
