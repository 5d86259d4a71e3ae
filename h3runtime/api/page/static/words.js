// Numbers and times as people read them.

export const FPS = 24;

/** 5.167 s, 1 min 04 s. */
export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 10) return `${Number(value.toFixed(value < 1 ? 3 : 2))} s`;
  if (value < 60) return `${value.toFixed(1)} s`;
  const whole = Math.round(value);
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${String(whole % 60).padStart(2, "0")} s`;
  return `${Math.floor(whole / 3600)} h ${String(Math.floor((whole % 3600) / 60)).padStart(2, "0")} min`;
}

/** A guess, which has no more than two digits to tell. */
export const roughly = (value) => `about ${seconds(Number(value.toPrecision(value < 100 ? 2 : 3)))}`;

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit && value < 100 ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
}

export const clipLength = (frames) => `${Number((frames / FPS).toFixed(3))} s`;

export const whole = (value) => value.toLocaleString("en");

/** `video_decode` -> `video decode`. */
export const plain = (name) => name.replaceAll("_", " ");

const NAMES = {
  n: "number of clips",
  crf: "CRF (quality of the picture)",
  fps: "frame rate",
  loras: "LoRAs",
  callback_url: "callback URL",
  output: "file name",
  sha256: "SHA-256",
  bytes: "size",
};

/** `aspect_ratio` -> `Aspect ratio`. */
export function title(name) {
  const text = NAMES[name] ?? plain(name);
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** The time of day of an RFC 3339 moment, with the date if it is another day's. */
export function clock(moment) {
  const date = new Date(moment);
  const time = date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit" });
  return date.toDateString() === new Date().toDateString() ? time : `${date.toLocaleDateString()} ${time}`;
}

export const shorten = (text, most) => (text.length > most ? `${text.slice(0, most - 1).trimEnd()}…` : text);
