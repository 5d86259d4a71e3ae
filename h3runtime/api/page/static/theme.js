// Dark and light: the system's choice, unless the person has made one, which this browser remembers.
import { byId } from "./dom.js";

const NAME = "h3-theme";
const NEXT = { auto: "light", light: "dark", dark: "auto" };

function stored() {
  try {
    return localStorage.getItem(NAME) || "auto";
  } catch {
    return "auto"; // storage may be forbidden
  }
}

function apply(choice) {
  if (choice === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = choice;
  const toggle = byId("theme");
  toggle.textContent = { auto: "Auto", light: "Light", dark: "Dark" }[choice];
  toggle.setAttribute("aria-label", `Colours: ${choice}. Change to ${NEXT[choice]}`);
}

export function startTheme() {
  let choice = stored() in NEXT ? stored() : "auto";
  apply(choice);
  byId("theme").addEventListener("click", () => {
    choice = NEXT[choice];
    try {
      localStorage.setItem(NAME, choice);
    } catch {
      // It holds until the page is left.
    }
    apply(choice);
  });
}
