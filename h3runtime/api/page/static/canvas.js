// How large the picture is: an aspect with a short edge, exact sides, or what the inputs ask for.
import { fieldBox, groupBox } from "./box.js";
import { el } from "./dom.js";

const ASPECTS = ["16:9", "9:16", "1:1", "4:3", "3:4", "21:9", "3:2", "2:3"];
const EDGES = Array.from({ length: 17 }, (_, index) => 256 + 32 * index);

export function createCanvas(limits, onChange) {
  const options = [
    el("option", { value: "auto" }, "Auto"),
    ...ASPECTS.map((ratio) => el("option", { value: ratio }, ratio)),
    el("option", { value: "exact" }, "Exact size"),
  ];
  const shape = fieldBox("Shape", el("select", {}, ...options));
  const edges = EDGES.map((edge) => el("option", { value: edge === 768 ? "" : String(edge) }, edge === 768 ? "768 (default)" : String(edge)));
  const edge = fieldBox("Short edge", el("select", {}, ...edges.reverse()));
  const side = { type: "number", min: limits.min_side, step: limits.side_multiple, inputmode: "numeric" };
  const width = fieldBox("Width", el("input", { ...side, value: "1344" }));
  const height = fieldBox("Height", el("input", { ...side, value: "768" }));
  const note = el("p", { class: "hint" }, `Auto: the shape of the first input, else 16:9. Sides are multiples of ${limits.side_multiple}, at most ${limits.max_area.toLocaleString("en")} pixels.`);
  const box = groupBox("Canvas", el("div", {}, el("div", { class: "row" }, shape.element, edge.element, width.element, height.element), note));
  const isExact = () => shape.control.value === "exact";

  function arrange() {
    edge.element.hidden = isExact();
    width.element.hidden = height.element.hidden = !isExact();
  }

  for (const each of [shape, edge, width, height]) {
    each.control.addEventListener(each.control.tagName === "SELECT" ? "change" : "input", () => {
      arrange();
      onChange();
    });
  }
  arrange();
  return {
    element: box.element,
    write(request) {
      if (isExact()) {
        // An empty side is sent as null, so that the server asks for it: left out, it would choose another canvas.
        for (const [name, box] of [["width", width], ["height", height]]) {
          request[name] = box.control.value === "" ? null : Number(box.control.value);
        }
        return;
      }
      if (shape.control.value !== "auto") request.aspect_ratio = shape.control.value;
      if (edge.control.value) request.short_edge = Number(edge.control.value);
    },
    load(request) {
      const known = ASPECTS.includes(request.aspect_ratio) ? request.aspect_ratio : "auto";
      shape.control.value = request.width ? "exact" : known;
      edge.control.value = request.short_edge && request.short_edge !== 768 ? String(request.short_edge) : "";
      if (request.width) width.control.value = request.width;
      if (request.height) height.control.value = request.height;
      arrange();
    },
    at: (field) => {
      const own = { width, height, aspect_ratio: shape, short_edge: edge }[field];
      return own.element.hidden ? shape : own;
    },
  };
}
