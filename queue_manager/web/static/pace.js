// Draws values that change all the time without keeping the browser busy.

const MAX_SHARE = 0.04; // of a core
const HIDDEN_INTERVAL = 250; // ms between two drawings of a hidden page, which has no frames

/** Draw with the next frame. @param {() => void} draw */
export function nextFrame(draw) {
  if (document.hidden) setTimeout(draw, HIDDEN_INTERVAL);
  else requestAnimationFrame(draw);
}

/**
 * Return a function that calls `act`: soon, `interval` ms after the last call ended, and when the page is seen.
 * @param {() => Promise<unknown>} act @param {number} interval
 */
export function seldom(act, interval) {
  let isWanted = false;
  let isResting = false;
  async function run() {
    if (!isWanted || isResting || document.hidden) return;
    isWanted = false;
    isResting = true;
    try {
      await act();
    } finally {
      setTimeout(() => {
        isResting = false;
        run();
      }, interval);
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
