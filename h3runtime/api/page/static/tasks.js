// What can be made, and which parts of the form each way asks for.

/** task: stated in the request; null: the inputs say. needs: body whose fields the form may show. */
export const WAYS = {
  t2va: { label: "Text", task: "t2va", hint: "From a prompt alone." },
  i2va: { label: "First frame", task: "i2va", first: true, guides: true, hint: "Starts with a picture; further guides on the timeline." },
  l2va: { label: "Last frame", task: "l2va", last: true, guides: true, hint: "Ends with a picture; further guides on the timeline." },
  fl2va: { label: "First and last", task: "fl2va", first: true, last: true, guides: true, hint: "From one picture to another." },
  ref2va: { label: "References", task: "ref2va", references: true, guides: true, hint: "Takes after pictures, clips and sounds; guides may stand beside them." },
  edit: { label: "Edit", task: null, edits: true, guides: true, hint: "Makes parts of a clip anew." },
  continue: { label: "Continue", task: null, continues: true, guides: true, hint: "Goes on where another clip ends." },
};

/** The way that a request was made. */
export function wayOf(request) {
  if (request.source) return "edit";
  if (request.continue_from) return "continue";
  if (request.references?.length || request.task === "ref2va") return "ref2va";
  if (request.task in WAYS) return request.task;
  if (request.first_frame && request.last_frame) return "fl2va";
  if (request.last_frame) return "l2va";
  return request.first_frame || request.keyframes?.length ? "i2va" : "t2va";
}
