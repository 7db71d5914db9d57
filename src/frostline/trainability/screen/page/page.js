"use strict";
// Draws the folded tree as an icicle: the root on the left, parameters on the right, heights by their counts.
// A node stands for one module or parameter, or for all of a group of equal blocks until the group is unfolded.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const at = id => document.getElementById(id);
  const KINDS = {
    frozen: "frozen", trained: "trained", adapter: "adapter", new: "new", mixed: "partly trained",
    conditional: "conditional", later: "in some phases", tied: "tied", noted: "with a note",
  };
  const state = { focus: null, unfolded: new Set(), scale: "log", only: new Set(), query: "", hits: null, turn: 0, active: null };

  // ---------------------------------------------------------------------------------------------- the tree

  const product = shape => shape.reduce((all, size) => all * size, 1);
  const entries = data.entries.map(([name, shape, dtype, kind, trains, conditional, rule, note, rows, ties, isAlias, phases]) => {
    const elements = isAlias ? 0 : product(shape);
    const trained = trains ? (rows && shape.length ? elements / shape[0] * rows[0] : elements) : 0;
    const state = !trains ? "frozen" : kind === "adapter" ? "adapter" : kind === "new" ? "new" : rows ? "mixed" : "trained";
    return { name, shape, dtype, kind, trains, conditional, rule, note, rows, ties, isAlias, phases, elements, trained, state,
      bytes: elements * data.itemsizes[dtype] };
  });

  // Sums of each distinct part, made once: parts come after all that they are made of.
  const zero = () => ({ elements: 0, trained: 0, bytes: 0, params: 0, by: {}, rules: new Map(), conditional: false, later: false, tied: false, noted: false, log: 0, numConditional: 0, numLater: 0, phases: new Map() });
  function add(sums, other, times) {
    for (const key of ["elements", "trained", "bytes", "params", "numConditional", "numLater"]) sums[key] += other[key] * times;
    for (const key in other.by) sums.by[key] = (sums.by[key] || 0) + other.by[key] * times;
    for (const [rule, count] of other.rules) sums.rules.set(rule, (sums.rules.get(rule) || 0) + count * times);
    for (const [phases, count] of other.phases) sums.phases.set(phases, (sums.phases.get(phases) || 0) + count * times);
    for (const key of ["conditional", "later", "tied", "noted"]) sums[key] = sums[key] || other[key];
  }
  const mayWait = entry => !!entry.conditional && (!!entry.trains || entry.phases.length > 0);
  // "starts in phase 1 (step 50), freezes in phase 2 (step 80)"
  function phaseWords(phases) {
    const words = [];
    data.phases.forEach((start, index) => {
      const [before, now] = [phases.includes(index), phases.includes(index + 1)];
      if (index === 0 && before) words.push("trains at the start");
      if (before !== now) words.push(`${now ? "starts" : "freezes"} in phase ${index + 1} (${start})`);
    });
    return words.join(", ");
  }
  const ofEntry = entries.map(entry => ({
    elements: entry.elements, trained: entry.trained, bytes: entry.bytes, params: entry.isAlias ? 0 : 1,
    by: entry.isAlias ? {} : entry.rows
      ? { trained: entry.trained, frozen: entry.elements - entry.trained } : { [entry.state]: entry.elements },
    rules: new Map(entry.isAlias ? [] : [[entry.rule, 1]]),
    numConditional: !entry.isAlias && mayWait(entry) ? 1 : 0, numLater: !entry.isAlias && entry.phases.length ? 1 : 0,
    phases: new Map(entry.isAlias || !entry.phases.length ? [] : [[phaseWords(entry.phases), 1]]),
    conditional: mayWait(entry), later: entry.phases.length > 0, tied: entry.ties.length > 0, noted: !!entry.note,
    log: entry.isAlias ? 3 : 1.2 + Math.log10(1 + entry.elements),
  }));
  const many = count => count === 1 ? 1 : 1 + Math.log2(count) / 3;
  const ofPart = [];
  data.parts.forEach(([, own, groups], index) => {
    const sums = zero();
    for (const entry of own) { add(sums, ofEntry[entry], 1); sums.log += ofEntry[entry].log; }
    for (const [names, part] of groups) {
      add(sums, ofPart[part], names.length);
      sums.log += ofPart[part].log * many(names.length);
    }
    ofPart[index] = sums;
  });

  const isNumber = text => /^\d+$/.test(text);
  function span(names) {
    if (names.length === 1) return names[0];
    const numbers = names.map(Number), step = numbers[1] - numbers[0];
    if (numbers.every((number, i) => i === 0 || number - numbers[i - 1] === step) && (step === 1 || names.length > 2))
      return `${names[0]}-${names[names.length - 1]}${step > 1 ? ` step ${step}` : ""}`;
    const runs = [];
    for (const number of numbers) {
      const last = runs[runs.length - 1];
      if (last && number === last[1] + 1) last[1] = number; else runs.push([number, number]);
    }
    const words = runs.map(([first, last]) => first === last ? `${first}` : `${first}-${last}`);
    return (words.length <= 6 ? words : [...words.slice(0, 5), `...,${words[words.length - 1]}`]).join(",");
  }

  const join = (path, name) => path && name ? `${path}.${name}` : path || name;
  // `names`: one list for each component that is folded or not; together they are all real paths of the node.
  const root = { path: "", names: [], part: data.root, entry: null, parent: null, times: 1, count: 1, label: data.parts[data.root][0] || "model" };
  root.key = "";

  const plain = node => node.chain ? Object.getPrototypeOf(node) : node;

  function childrenOf(drawnNode) {
    const node = plain(drawnNode);
    if (node.children) return node.children;
    const found = node.children = [];
    if (node.entry !== null) return found;
    const [, own, groups] = data.parts[node.part];
    const make = (names, rest) => {
      const label = span(names);
      const child = { ...rest, parent: node, label, names: [...node.names, names], count: names.length,
        times: node.times * names.length, path: join(node.path, label) };
      child.key = `${node.key}/${names.join(",")}`;
      found.push(child);
      return child;
    };
    for (const entry of own) make([entries[entry].name], { entry, part: null });
    for (const [names, part] of groups) {
      if (ofPart[part].params === 0 && !ofPart[part].tied) continue;
      if (names.length > 1 && state.unfolded.has(`${node.key}/${names.join(",")}`))
        for (const name of names) make([name], { entry: null, part }).group = `${node.key}/${names.join(",")}`;
      else make(names, { entry: null, part });
    }
    return found;
  }

  // A chain of modules with one child each is drawn as one cell.
  function shown(node) {
    let child = node, label = node.label;
    const chain = [node];
    while (child.entry === null && child.count === 1) {
      const below = childrenOf(child);
      if (below.length !== 1) break;
      child = below[0];
      label = node === root && chain.length === 1 ? child.label : `${label}.${child.label}`;
      chain.push(child);
    }
    return child === node ? node : Object.assign(Object.create(child), { label, chain });
  }

  const sumsOf = node => node.entry !== null ? ofEntry[node.entry] : ofPart[node.part];
  function stateOf(node) {
    if (node.entry !== null) return entries[node.entry].state;
    const present = Object.keys(sumsOf(node).by);
    return present.length === 1 ? present[0] : present.length === 0 ? "frozen" : "mixed";
  }
  // In the linear scale what trains, and every other name of a tensor, keeps a height that can be seen.
  const least = ofPart[data.root].elements * 0.004;
  const weight = node => {
    const sums = sumsOf(node);
    if (state.scale === "log") return sums.log * many(node.count);
    return Math.max(sums.elements * node.count, sums.trained || sums.params === 0 ? least : 0);
  };

  // ------------------------------------------------------------------------------------------------ words

  const comma = number => Math.round(number).toLocaleString("en-US");
  function short(number) {
    for (const [size, unit] of [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "k"]])
      if (number >= size) return `${(number / size).toFixed(number / size < 10 ? 1 : 0)}${unit}`;
    return `${Math.round(number)}`;
  }
  const megabytes = bytes => bytes >= 1e9 ? `${(bytes / 1e9).toFixed(2)} GB` : bytes >= 1e5 ? `${(bytes / 1e6).toFixed(1)} MB` : `${comma(bytes)} bytes`;
  const ruleText = index => { const [text, place] = data.rules[index]; return place ? `${place}\n${text}` : text; };
  const element = (tag, text, parent, className) => {
    const made = document.createElement(tag);
    if (text !== undefined && text !== null) made.textContent = text;
    if (className) made.className = className;
    if (parent) parent.append(made);
    return made;
  };

  function describe(node) {
    const sums = sumsOf(node), lines = [];
    const blocks = node.times > 1 ? ` (${comma(node.times)} equal, counts of all)` : "";
    if (node.entry !== null) {
      const entry = entries[node.entry];
      lines.push(["shape", `${entry.shape.join(" × ") || "one number"}  ${entry.dtype}`]);
      lines.push(["size", `${comma(product(entry.shape) * node.times)} elements, ${megabytes(product(entry.shape) * data.itemsizes[entry.dtype] * node.times)}${blocks}`]);
      const what = entry.kind === "adapter" ? "adapter" : entry.kind === "new" ? "new: not in the base files" : "base";
      const trains = !entry.trains ? (entry.phases.length ? "not at the start" : "no, frozen") : entry.rows ? `${comma(entry.rows[0])} rows, ${entry.rows[1]} to ${entry.rows[2]}` : "yes";
      lines.push(["trains", `${trains} (${what}${entry.conditional ? ", conditional: may stay without a gradient" : ""})`]);
      if (entry.phases.length) lines.push(["phases", phaseWords(entry.phases)]);
      lines.push(["rule", ruleText(entry.rule)]);
      if (entry.ties.length) lines.push(["tied", `${entry.isAlias ? "another name of" : "one tensor with"} ${tiesOf(node).join(", ")}${entry.isAlias ? "; counted there" : ""}`]);
      if (entry.note) lines.push(["note", entry.note]);
    } else {
      lines.push(["class", `${data.parts[node.part][0]}${blocks}`]);
      lines.push(["size", `${comma(sums.elements * node.times)} elements in ${comma(sums.params * node.times)} parameters, ${megabytes(sums.bytes * node.times)}`]);
      lines.push(["trains", sums.trained ? `${comma(sums.trained * node.times)} elements (${(100 * sums.trained / sums.elements).toFixed(2)} %)` : sums.later ? "nothing at the start" : "nothing, frozen"]);
      const rules = [...sums.rules.entries()];
      rules.slice(0, 5).forEach(([rule, count], i) => lines.push([i ? "" : "rules", `${comma(count * node.times)} by ${ruleText(rule).replace("\n", ": ")}`]));
      if (rules.length > 5) lines.push(["", `and ${rules.length - 5} more`]);
      const phases = [...sums.phases.entries()];
      phases.slice(0, 4).forEach(([words, count], i) => lines.push([i ? "" : "phases", `${sums.numLater === sums.params && phases.length === 1 ? "" : `${comma(count * node.times)} of ${comma(sums.params * node.times)} parameters: `}${words}`]));
      if (phases.length > 4) lines.push(["", `and ${phases.length - 4} more`]);
      if (sums.tied) lines.push(["tied", "holds a tensor that has another name too"]);
      if (sums.noted) lines.push(["note", "holds a parameter with a note"]);
    }
    return lines;
  }

  // Real path of the tensor that a tie leads to, seen from the node (of folded blocks: as a pattern).
  function tiesOf(node) {
    const here = node.names.map(span).join(".").split(".");
    return entries[node.entry].ties.map(([up, rest]) => [...here.slice(0, here.length - up), rest].filter(Boolean).join("."));
  }

  // ----------------------------------------------------------------------------------------------- layout

  const picture = at("picture"), cells = new Map();
  let drawn = [];

  function layout() {
    const hasTies = sumsOf(root).tied;
    const width = picture.clientWidth - (hasTies ? 34 : 0);
    const height = Math.max(420, Math.min(window.innerHeight - 250, 900));
    const focus = shown(state.focus || root);
    const depthOf = node => node.entry !== null ? 1 : 1 + Math.max(0, ...childrenOf(node).map(child => depthOf(shown(child))));
    const columns = Math.max(2, Math.min(depthOf(focus), Math.floor(width / 118)));
    // The first column tells little beside the breadcrumb, the last one has the longest names.
    const shares = Array.from({ length: columns }, (_, column) => column === 0 ? 0.55 : column === columns - 1 ? 1.3 : 1);
    const unit = width / shares.reduce((all, share) => all + share, 0);
    const edges = shares.reduce((all, share) => [...all, all[all.length - 1] + share * unit], [0]);
    const found = [];
    (function place(node, column, top, size) {
      const inside = node.entry !== null ? [] : childrenOf(node).map(shown);
      const isLast = inside.length === 0 || column === columns - 1;
      const left = edges[column];
      found.push({ node, left, top, width: (isLast ? width : edges[column + 1]) - left, height: size, isLast, more: isLast && inside.length > 0 });
      if (isLast) return;
      const whole = inside.reduce((all, child) => all + weight(child), 0) || 1;
      let from = top;
      for (const child of inside) {
        const part = size * weight(child) / whole;
        if (part >= 0.6) place(child, column + 1, from, part);
        from += part;
      }
    })(focus, 0, 0, height);
    picture.style.height = `${height}px`;
    return found;
  }

  const matchesLegend = node => {
    const sums = sumsOf(node), kind = stateOf(node);
    return [...state.only].some(key => key === kind || key in sums.by || (key in sums && sums[key] === true));
  };

  function draw() {
    drawn = layout();
    const keep = new Set();
    const active = drawn.some(box => box.node.key === state.active) ? state.active : drawn[0].node.key;
    for (const box of drawn) {
      const { node } = box, key = node.key;
      keep.add(key);
      let cell = cells.get(key);
      if (!cell) {
        cell = element("div", null, picture, "cell");
        cell.setAttribute("role", "treeitem");
        cells.set(key, cell);
      }
      box.cell = cell;
      cell.node = node;
      // Stripes say what is true of the whole cell: a module of which only a part is affected has none.
      const sums = sumsOf(node), isWholly = (flag, count) => sums[flag] && (entry || (style !== "mixed" && sums[count] === sums.params));
      const style = stateOf(node), entry = node.entry !== null ? entries[node.entry] : null;
      const isHit = state.hits && state.hits.has(key), isDim = (state.hits && !isHit) || (state.only.size && !matchesLegend(node));
      cell.className = ["cell", entry && entry.rows ? "rows" : style, isWholly("conditional", "numConditional") && "conditional",
        entry && entry.isAlias && "ghost", isWholly("later", "numLater") && "later", box.height < 6 && "thin", isDim && "dim", isHit && state.hits.get(key) === "self" && "hit"].filter(Boolean).join(" ");
      const gap = box.height > 8 ? 2 : box.height > 4 ? 1 : 0;
      Object.assign(cell.style, { left: `${box.left}px`, top: `${box.top}px`, width: `${Math.max(box.width - 2, 2)}px`, height: `${Math.max(box.height - gap, 1)}px` });
      cell.tabIndex = key === active ? 0 : -1;
      cell.setAttribute("aria-level", String(node.names.length + 1));
      cell.setAttribute("aria-label", `${node.path || "root"}${node.count > 1 ? `, ${node.count} equal blocks` : ""}, ${KINDS[style]}, ${comma(sumsOf(node).elements * node.times)} elements`);
      cell.dataset.path = node.path;
      cell.dataset.state = style;
      if (entry === null) cell.setAttribute("aria-expanded", String(!box.more)); else cell.removeAttribute("aria-expanded");
      fill(cell, box, style);
    }
    for (const [key, cell] of cells) if (!keep.has(key)) { cell.remove(); cells.delete(key); }
    drawTies();
    drawCrumbs();
  }

  function fill(cell, box, style) {
    const { node } = box, sums = sumsOf(node);
    cell.replaceChildren();
    if (style === "mixed" && box.height > 3 && node.entry === null) {
      const strip = element("div", null, cell, "strip");
      for (const kind of ["trained", "adapter", "new", "frozen"])
        if (sums.by[kind]) {
          const share = sums.by[kind] / sums.elements;
          element("i", null, strip, kind).style.flexGrow = String(state.scale === "linear" ? share : Math.sqrt(share));
        }
    }
    if (box.height < 12) return;  // less than a line of the smallest letters
    const isHigh = box.height > (style === "mixed" ? 60 : 44);
    const text = element("div", null, cell, isHigh ? "text high" : box.height < 19 ? "text low" : "text");
    element("b", node.label, text);
    if (node.count > 1) badge(text, `×${node.count}`, `Unfold ${node.count} equal blocks`, () => toggle(node));
    else if (node.group && node.parent) badge(text, "fold", "Fold the equal blocks again", () => toggle(node));
    const isPartlyLater = node.entry === null && sums.later && (style === "mixed" || sums.numLater < sums.params);
    const marks = [isPartlyLater && "part in phases", sums.tied && "⇄ tied", node.entry !== null && sums.noted && "✎ note", node.entry !== null && entries[node.entry].kind === "new" && "NEW"].filter(Boolean);
    const counts = node.entry !== null ? `${entries[node.entry].shape.join("×")}` : short(sums.elements * node.times);
    const trains = node.entry === null && sums.trained && sums.trained < sums.elements ? `, ${short(sums.trained * node.times)} train` : "";
    if (!isHigh) { element("span", [counts + trains, ...marks].join(" · "), text); return; }
    element("div", null, text, "break");
    element("span", [counts, ...marks].join(" · "), text);
    if (trains) element("em", trains.slice(2), text);
  }

  function badge(parent, text, title, act) {
    const made = element("button", text, parent, "badge");
    made.type = "button"; made.title = title; made.tabIndex = -1;
    made.addEventListener("click", event => { event.stopPropagation(); act(); });
  }

  function drawTies() {
    const svg = at("ties");
    svg.replaceChildren();
    const byPath = new Map(drawn.map(box => [box.node.path, box]));
    const visible = path => { while (path && !byPath.has(path)) path = path.replace(/\.?[^.]*$/, ""); return byPath.get(path); };
    const seen = new Set();
    for (const box of drawn) {
      if (box.node.entry === null) continue;
      for (const path of tiesOf(box.node)) {
        const other = visible(path), pair = [box.node.path, path].sort().join("|");
        if (!other || other === box || seen.has(pair)) continue;
        seen.add(pair);
        const x = Math.max(box.left + box.width, other.left + other.width) - 2;
        const [y, z] = [box, other].map(end => end.top + end.height / 2);
        const line = svg.appendChild(document.createElementNS("http://www.w3.org/2000/svg", "path"));
        line.setAttribute("d", `M${box.left + box.width - 4},${y} H${x} C${x + 34},${y} ${x + 34},${z} ${x},${z} H${other.left + other.width - 4}`);
        line.dataset.ends = `${box.node.path} ${path}`;
        for (const [cx, cy] of [[box.left + box.width - 4, y], [other.left + other.width - 4, z]]) {
          const dot = svg.appendChild(document.createElementNS("http://www.w3.org/2000/svg", "circle"));
          for (const [name, value] of Object.entries({ cx, cy, r: 3 })) dot.setAttribute(name, value);
        }
      }
    }
  }

  function drawCrumbs() {
    const crumbs = at("crumbs"), chain = [];
    crumbs.replaceChildren();
    for (let node = state.focus || root; node; node = node.parent) chain.unshift(node);
    chain.forEach((node, index) => {
      if (index) crumbs.append(" › ");
      const made = element("button", node === root ? root.label : node.label, crumbs);
      made.type = "button";
      if (index === chain.length - 1) made.setAttribute("aria-current", "true");
      made.addEventListener("click", () => zoom(node));
    });
  }

  // ---------------------------------------------------------------------------------------------- actions

  function zoom(node) {
    const target = node.entry !== null ? node.parent : node;
    state.focus = !target || target === root ? null : plain(target);
    state.active = null;
    hideTip();
    draw();
  }

  function toggle(node) {
    const group = node.group || (node.count > 1 ? node.key : null);
    if (!group) return;
    const parent = plain(node).parent, focusKey = state.focus && state.focus.key;
    if (state.unfolded.has(group)) state.unfolded.delete(group); else state.unfolded.add(group);
    parent.children = null;
    if (focusKey && (focusKey === node.key || focusKey.startsWith(`${group.slice(0, group.lastIndexOf("/"))}/`))) state.focus = parent === root ? null : parent;
    state.active = null;
    search();
    draw();
  }

  // All real paths are looked at, folded or not: what is found is shown where it is folded.
  function search() {
    const query = state.query.trim().toLowerCase();
    state.hits = null; state.turn = 0; state.first = [];
    at("found").dataset.query = query;
    if (!query) { at("found").textContent = ""; return; }
    const glob = query.includes("*") ? new RegExp(query.split("*").map(part => part.replace(/[.+?^${}()|[\]\\]/g, "\\$&")).join(".*")) : null;
    const fits = text => glob ? glob.test(text) : text.includes(query);
    const ruleFits = data.rules.map(([text, place]) => fits(`${place} ${text}`.toLowerCase()));
    let count = 0;
    state.hits = new Map();
    // `paths`: all real paths of the node in lower case; `fitting`: which of them fit; `above`: which of their parents'.
    (function walk(node, paths, fitting, above) {
      const isEntry = node.entry !== null;
      let any = false, isHit;
      if (isEntry) {
        const whole = (!entries[node.entry].isAlias && ruleFits[entries[node.entry].rule]) || fits(node.path.toLowerCase());
        const own = whole ? paths.length : fitting.reduce((sum, fit) => sum + fit, 0);
        count += own;
        isHit = own > 0;
      } else {
        // A module is found itself where its own last component makes the match, not each module below it.
        isHit = node !== root && (fits(data.parts[node.part][0].toLowerCase()) || fitting.some((fit, i) => fit && !above[i]));
      }
      for (const child of childrenOf(node)) {
        const names = child.names[child.names.length - 1].map(name => name.toLowerCase());
        const below = [], fitsBelow = [], fitsHere = [];
        paths.forEach((path, i) => {
          for (const name of names) {
            const joined = path ? `${path}.${name}` : name;
            below.push(joined);
            fitsBelow.push(fits(joined) ? 1 : 0);
            fitsHere.push(fitting[i]);
          }
        });
        any = walk(child, below, fitsBelow, fitsHere) || any;
      }
      if (isHit) { state.hits.set(node.key, "self"); state.first.push(node); } else if (any) state.hits.set(node.key, "inside");
      return isHit || any;
    })(root, [""], [0], [0]);
    at("found").textContent = count || state.first.length ? `${comma(count)} parameter${count === 1 ? "" : "s"}; Enter zooms` : "nothing found";
  }

  function zoomToHits() {
    const found = state.first || [];
    if (!found.length) return;
    const lineage = node => { const all = []; for (let up = node; up; up = up.parent) all.unshift(up); return all; };
    let common = lineage(found[0]);
    for (const node of found) { const other = lineage(node); common = common.filter((up, index) => up === other[index]); }
    let target = common[common.length - 1];
    if (target.entry !== null) target = target.parent;
    if (target === (state.focus || root) || (state.turn > 0 && found.length > 1)) {
      const node = found[state.turn++ % found.length];
      target = node.entry !== null ? node.parent : node;
    }
    zoom(target);
  }

  // ---------------------------------------------------------------------------------------------- pointer

  const tip = at("tip");
  function showTip(cell, x, y) {
    const { node } = cell;
    tip.replaceChildren();
    element("h3", node.path || root.label, tip);
    const list = element("dl", null, tip);
    for (const [term, text] of describe(node)) {
      element("dt", term, list);
      const value = element("dd", null, list);
      value.style.whiteSpace = "pre-line";
      value.textContent = text;
    }
    tip.hidden = false;
    const { width, height } = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(6, Math.min(x + 14, window.innerWidth - width - 8))}px`;
    tip.style.top = `${Math.max(6, y + 16 + height > window.innerHeight ? y - height - 12 : y + 16)}px`;
    for (const line of at("ties").querySelectorAll("path")) line.classList.toggle("lit", line.dataset.ends.split(" ").includes(node.path));
  }
  function hideTip() { tip.hidden = true; for (const line of at("ties").querySelectorAll("path")) line.classList.remove("lit"); }

  const cellOf = event => event.target.closest ? event.target.closest(".cell") : null;
  picture.addEventListener("mousemove", event => { const cell = cellOf(event); if (cell) showTip(cell, event.clientX, event.clientY); else hideTip(); });
  picture.addEventListener("mouseleave", hideTip);
  picture.addEventListener("focusin", event => {
    const cell = cellOf(event);
    if (!cell || !cell.matches(":focus-visible")) return;
    const box = cell.getBoundingClientRect();
    showTip(cell, box.left + 10, Math.min(box.bottom, window.innerHeight - 160) - 10);
  });
  picture.addEventListener("focusout", hideTip);
  picture.addEventListener("click", event => { const cell = cellOf(event); if (cell) (cell.node.key === (state.focus || root).key ? zoomOut : () => zoom(cell.node))(); });
  picture.addEventListener("keydown", event => {
    const cell = cellOf(event), index = drawn.findIndex(box => box.cell === cell);
    if (index < 0) return;
    const box = drawn[index], same = drawn.filter(other => Math.abs(other.left - box.left) < 1);
    const next = {
      ArrowDown: () => same[same.indexOf(box) + 1], ArrowUp: () => same[same.indexOf(box) - 1],
      ArrowRight: () => drawn[index + 1] && drawn[index + 1].left > box.left + 1 ? drawn[index + 1] : null,
      ArrowLeft: () => [...drawn.slice(0, index)].reverse().find(other => other.left < box.left - 1),
      Home: () => drawn[0], End: () => drawn[drawn.length - 1],
    }[event.key];
    if (next) {
      event.preventDefault();
      const to = next();
      if (to) { state.active = to.node.key; cell.tabIndex = -1; to.cell.tabIndex = 0; to.cell.focus(); }
    } else if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      zoom(box.node);
      drawn[0].cell.focus();
    } else if (event.key.toLowerCase() === "u" && !event.ctrlKey && !event.metaKey) {
      const group = box.node.group || box.node.key;
      toggle(box.node);
      const back = drawn.find(other => other.node.key === group || other.node.group === group) || drawn[0];
      back.cell.tabIndex = 0; back.cell.focus();
    }
  });
  function zoomOut() { if (state.focus) zoom(state.focus.parent || root); }
  document.addEventListener("keydown", event => {
    if (event.key === "/" && document.activeElement !== at("search")) { event.preventDefault(); at("search").focus(); }
    if (event.key !== "Escape") return;
    if (state.query) { at("search").value = state.query = ""; search(); draw(); }
    else if (state.only.size) { state.only.clear(); drawLegend(); draw(); }
    else { zoomOut(); if (document.activeElement && document.activeElement.id !== "search") drawn[0].cell.focus(); }
  });
  let waiting = 0;
  at("search").addEventListener("input", event => {
    state.query = event.target.value;
    clearTimeout(waiting);
    waiting = setTimeout(() => { search(); draw(); }, sumsOf(root).params > 20000 ? 250 : 40);
  });
  at("search").addEventListener("keydown", event => { if (event.key === "Enter") { clearTimeout(waiting); if (!state.hits) search(); zoomToHits(); } });
  for (const name of ["log", "linear"]) at(name).addEventListener("click", () => {
    state.scale = name;
    for (const other of ["log", "linear"]) at(other).setAttribute("aria-pressed", String(other === name));
    draw();
  });
  at("fold").addEventListener("click", () => {
    state.unfolded.clear(); state.focus = null;
    root.children = null;
    search(); draw();
  });
  let drawnWidth = 0;
  new ResizeObserver(() => { if (picture.clientWidth !== drawnWidth) { drawnWidth = picture.clientWidth; draw(); } }).observe(picture);
  addEventListener("resize", draw);

  // ---------------------------------------------------------------------------------------------- the rest

  function drawLegend() {
    const legend = at("legend"), sums = sumsOf(root);
    legend.replaceChildren();
    for (const [key, text] of Object.entries(KINDS)) {
      const isThere = key === "mixed" ? Object.keys(sums.by).length > 1 : key in sums.by || sums[key] === true;
      if (!isThere) continue;
      const made = element("button", null, legend);
      made.type = "button";
      made.dataset.kind = key;
      made.setAttribute("aria-pressed", String(state.only.has(key)));
      const glyph = { tied: "⇄", noted: "✎" }[key];
      element(glyph ? "span" : "i", glyph, made, glyph ? "" : key === "conditional" ? "trained conditional" : key === "later" ? "frozen later" : key);
      made.append(text);
      made.addEventListener("click", () => { if (!state.only.delete(key)) state.only.add(key); drawLegend(); draw(); });
    }
  }

  at("title").textContent = data.title;
  at("method").textContent = data.method ? `${data.method} on a frozen base` : "no adapter";
  at("digest").textContent = `plan ${data.digest.slice(0, 8)}`;
  at("digest").title = data.digest;
  at("trained").textContent = comma(data.numTrainable);
  at("total").textContent = `of ${comma(data.numTotal)} parameters train (${(100 * data.numTrainable / Math.max(1, data.numTotal)).toFixed(2)} %)${data.when && ` ${data.when}`}`;
  for (const kind of ["frozen", "trained", "adapter", "new"])
    if (sumsOf(root).by[kind]) element("i", null, at("composition"), kind).style.flexGrow = String(sumsOf(root).by[kind] / sumsOf(root).elements);
  const head = element("tr", null, element("thead", null, at("forecast")));
  ["", ...data.forecasts.map(forecast => forecast.label)].forEach(text => element("th", text, head));
  const rows = [["weights", "weights"], ["of them adapters", "adapters"], ["gradients", "gradients"], [data.optimizer, "optimizer_state"], ["together", "total"]];
  for (const [label, key] of rows) {
    if (key === "adapters" && !data.forecasts[0].adapters_bytes) continue;
    const row = element("tr", null, at("forecast"));
    element("th", label, row);
    for (const forecast of data.forecasts) element("td", megabytes(forecast[`${key}_bytes`]), row);
  }
  for (const [key, text] of [...data.facts, ["plan", data.digest]]) { element("dt", key, at("facts")); element("dd", text, at("facts")); }
  if (data.notes.length) {
    element("h2", "Notes", at("notes"));
    const list = element("ul", null, at("notes"));
    for (const note of data.notes) element("li", note, list);
  }
  drawLegend();
  draw();
})();
