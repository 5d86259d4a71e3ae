// Names of fields as the server writes them: `references[0].source` is ["references", 0, "source"].

export function parsePath(field) {
  return [...field.matchAll(/[^.[\]]+|\[(\d+)\]/g)].map((part) => (part[1] === undefined ? part[0] : Number(part[1])));
}
