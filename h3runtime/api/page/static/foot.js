// What gets the focus is not left below the bar at the foot of the form, however tall that has become.
const SPACE = 16;

export function startFoot(foot) {
  const root = document.documentElement;

  function measure() {
    const covers = getComputedStyle(foot).position === "sticky" ? foot.offsetHeight : 0;
    root.style.scrollPaddingBottom = `${covers + SPACE}px`;
  }

  new ResizeObserver(measure).observe(foot);
  addEventListener("resize", measure);
}
