// Figures that answer. A script element beside a figure (lib.figures.answers) has all its states as JSON: for every
// setting of the controls and every panel a list of numbers, the parts that are drawn there. This script draws them as SVG
// in place of the still picture, which stays where there is no JavaScript, and in print.
document.addEventListener("DOMContentLoaded", () => {
  const GREY = "var(--figure-grey)";
  function element(name, { text = "", ...attributes } = {}, parent = null, space = "http://www.w3.org/1999/xhtml") {
    const made = document.createElementNS(space, name);
    made.textContent = text;
    for (const key in attributes) made.setAttribute(key, attributes[key]);
    parent?.append(made);
    return made;
  }
  const shape = (name, attributes, parent) => element(name, attributes, parent, "http://www.w3.org/2000/svg");

  // Places are 16-bit integers in base64: x and y by turns, in thousandths of the panel from its upper left corner.
  function places(text, box) {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const numbers = new DataView(bytes.buffer);
    return Array.from({ length: bytes.length / 4 }, (_, i) => [
      box.x + (box.width * numbers.getInt16(4 * i, true)) / 1000,
      box.y + (box.height * numbers.getInt16(4 * i + 2, true)) / 1000,
    ]);
  }

  // The colour of a number on a scale of colours.
  function shade(value, { colors, limits }) {
    const place = Math.round(((value - limits[0]) / (limits[1] - limits[0])) * (colors.length - 1));
    return colors[Math.min(Math.max(place, 0), colors.length - 1)];
  }

  // Draws the frame of a panel: title, labels, ticks. Returns the box inside.
  function drawFrame(svg, title, { size, ratio, x, y }) {
    const [width] = size;
    const longest = Math.max(0, ...(y?.ticks ?? []).map(([, text]) => text.length));
    const box = { x: 8 + (y ? 18 * !!y.label + 0.6 * y.letters * longest : 0), y: title ? 30 : 8 };
    svg.classList.toggle("bare", !x?.ticks.length && !y?.ticks.length);
    const below = x ? 12 + 18 * !!x.ticks.length + 20 * !!x.label : 8;
    box.width = width - box.x - 12;
    box.height = ratio ? box.width * ratio : size[1] - box.y - below;
    const [right, bottom] = [box.x + box.width, box.y + box.height];
    svg.setAttribute("viewBox", `0 0 ${width} ${bottom + below}`);
    const say = (text, at) => shape("text", { text, fill: "currentColor", "text-anchor": "middle", ...at }, svg);
    const rule = (x1, y1, x2, y2) => shape("line", { x1, y1, x2, y2, stroke: GREY }, svg);
    if (title) say(title, { x: box.x + box.width / 2, y: 18, "font-size": "1.1em" });
    if (x) {
      if (x.line) rule(box.x, bottom, right, bottom);
      for (const [at, text] of x.ticks) {
        const tick = box.x + (box.width * at) / 1000;
        rule(tick, bottom, tick, bottom + 4);
        say(text, { x: tick, y: bottom + 18, "font-size": x.letters });
      }
      say(x.label, { x: box.x + box.width / 2, y: bottom + below - 6 });
    }
    if (y) {
      if (y.line) rule(box.x, box.y, box.x, bottom);
      for (const [at, text] of y.ticks) {
        const tick = box.y + (box.height * at) / 1000;
        rule(box.x - 4, tick, box.x, tick);
        say(text, { x: box.x - 7, y: tick + 0.35 * y.letters, "text-anchor": "end", "font-size": y.letters });
      }
      say(y.label, { transform: `translate(13 ${box.y + box.height / 2}) rotate(-90)` });
    }
    return box;
  }

  // Draws one part of a panel, and returns its marks that answer: where they are, and what they say and do.
  function drawPart(svg, box, part, look, told) {
    const [color, opacity] = look.color ?? [];
    const ink = { stroke: color || GREY, "stroke-opacity": opacity };
    const marks = [];
    const mark = (index, at, values = {}) => {
      if (!told.texts) return;
      const whole = Array.isArray(told.texts) ? told.texts[index] : told.texts;
      const text = whole.replace(/\{(\w+)\}/g, (_, key) => values[key]);
      const sets = (told.sets ?? []).map(([control, options]) => [control, options[index]]);
      marks.push({ ...at, text, sets, picture: told.pictures?.[index], pixels: told.width });
    };
    if (look.kind === "cells") {
      const [x0, x1] = [0, 2].map((i) => box.x + (box.width * part.box[i]) / 1000);
      const [y0, y1] = [1, 3].map((i) => box.y + (box.height * part.box[i]) / 1000);
      const { columns, values } = part;
      const [width, height] = [(x1 - x0) / columns, ((y1 - y0) * columns) / values.length];
      values.forEach((value, i) => {
        const [row, column] = [Math.floor(i / columns), i % columns];
        const corner = { x: x0 + (column + (width < 0)) * width, y: y0 + (row + (height < 0)) * height };
        const cell = { ...corner, width: Math.abs(width), height: Math.abs(height) };
        const fill = value === null ? "none" : shade(value, look);
        shape("rect", { ...cell, fill, "shape-rendering": "crispEdges" }, svg);
        const names = { row: told.rows?.[row] ?? row + 1, column: told.columns?.[column] ?? column + 1 };
        mark(i, { ...cell, columns }, { ...names, value: String(value ?? "none").replace("-", "−") });
      });
      return marks;
    }
    const points = places(part.at, box);
    if (look.kind === "line") {
      const style = { ...ink, "stroke-width": look.width, "stroke-dasharray": look.dash };
      shape("polyline", { points: points.join(" "), fill: "none", ...style }, svg);
    } else if (look.kind === "area") {
      const [fill, opaque] = look.fill;
      const style = { ...ink, "stroke-width": look.width, fill: fill || GREY, "fill-opacity": opaque };
      shape("polygon", { points: points.join(" "), ...style }, svg);
      const middle = (i) => (Math.min(...points.map((at) => at[i])) + Math.max(...points.map((at) => at[i]))) / 2;
      mark(0, { x: middle(0), y: middle(1) });
    } else if (look.kind === "text") {
      const [x, y] = points[0];
      const onTile = color === "#FFFFFF" || color === "#000000"; // other text is legible on the page, in both themes
      const fill = onTile ? color : color ? `color-mix(in srgb, ${color}, currentColor)` : "currentColor";
      const style = { fill, "fill-opacity": opacity, "font-size": look.size, "text-anchor": look.anchor };
      const transform = `translate(${x} ${y}) rotate(${look.turn})`;
      shape("text", { text: part.text, transform, y: look.shift * look.size, ...style }, svg);
    } else {
      const filled = { fill: ink.stroke, "fill-opacity": opacity };
      const style = look.filled ? filled : { fill: "none", ...ink, "stroke-width": 1.5 };
      const group = shape("g", style, svg);
      points.forEach(([x, y], i) => {
        shape("path", { d: look.path, transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})` }, group);
        mark(i, { x, y });
      });
    }
    return marks;
  }

  function answer(figure, data) {
    const label = data.alt || (figure.querySelector("svg[aria-label]")?.getAttribute("aria-label") ?? "");
    const whole = element("div", { class: "answer", role: "group", "aria-label": label });
    const bar = element("div", { class: "answer-controls" }, whole);
    const row = element("div", { class: "answer-panels" }, whole);
    const tip = element("div", { class: "answer-tip", role: "status", hidden: "" }, whole);
    const fields = data.controls.map(makeControl);
    const panels = data.states[0].map(() => makePanel(row));

    // A slider, a list or a box to tick, by the number of the value that it shows.
    function makeControl({ label, kind, values, start }) {
      const place = element("label", {}, bar);
      element("span", { text: label }, place);
      const field = element(kind === "list" ? "select" : "input", {}, place);
      if (kind === "list") values.forEach((text) => element("option", { text }, field));
      else field.type = kind === "box" ? "checkbox" : "range";
      if (kind === "slider") field.max = values.length - 1;
      const shown = kind === "slider" ? element("output", {}, place) : null;
      const ticked = () => values.indexOf(field.checked ? "1" : "0");
      const get = { box: ticked, list: () => field.selectedIndex, slider: () => Number(field.value) }[kind];
      const set = (number) => {
        if (kind === "box") field.checked = values[number] === "1";
        else if (kind === "list") field.selectedIndex = number;
        else field.value = number;
        if (shown) field.setAttribute("aria-valuetext", (shown.textContent = values[number]));
      };
      set(start);
      field.addEventListener("input", () => (set(get()), draw()));
      return { get, set };
    }

    function makePanel(parent) {
      const svg = shape("svg", { role: "img" }, parent);
      const panel = { svg, marks: [], at: 0 };
      const pointed = (event) => {
        const { left, width, top } = svg.getBoundingClientRect();
        const scale = svg.viewBox.baseVal.width / width;
        const [x, y] = [(event.clientX - left) * scale, (event.clientY - top) * scale];
        const beyond = (at, start, size = 0) => Math.max(start - at, at - start - size, 0);
        const away = panel.marks.map((mark) => Math.hypot(beyond(x, mark.x, mark.width), beyond(y, mark.y, mark.height)));
        const nearest = away.indexOf(Math.min(...away));
        if (away[nearest] < 24) show(panel, nearest); // as close as a finger gets
        else hide();
      };
      for (const kind of ["pointermove", "pointerdown"]) svg.addEventListener(kind, pointed);
      svg.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && hide());
      svg.addEventListener("focus", () => svg.matches(":focus-visible") && show(panel, panel.at));
      svg.addEventListener("blur", hide);
      svg.addEventListener("keydown", (event) => {
        const columns = panel.marks[panel.at]?.columns ?? 1;
        const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns }[event.key];
        if (event.key === "Escape") hide();
        if (!step || !panel.marks.length) return;
        event.preventDefault();
        show(panel, Math.min(Math.max(panel.at + step, 0), panel.marks.length - 1));
      });
      return panel;
    }

    function hide() {
      tip.hidden = true;
      for (const { svg } of panels) svg.querySelector(".answer-seen")?.remove();
    }

    function show(panel, at) {
      panel.at = at;
      const mark = panel.marks[at];
      if (!mark) return;
      hide();
      if (mark.sets.some(([control, option]) => fields[control].get() !== option)) {
        for (const [control, option] of mark.sets) fields[control].set(option);
        draw();
      }
      const { x: left, y: top, width = 0, height = 0 } = mark;
      if (width) shape("rect", { class: "answer-seen", x: left, y: top, width, height }, panel.svg);
      else shape("circle", { class: "answer-seen", cx: left, cy: top, r: 8 }, panel.svg);
      tip.replaceChildren();
      if (mark.picture) drawPicture(mark.picture, mark.pixels);
      element("span", { text: mark.text }, tip);
      tip.hidden = false;
      // above the mark, and inside the figure
      const [outer, inner] = [whole, panel.svg].map((one) => one.getBoundingClientRect());
      const scale = inner.width / panel.svg.viewBox.baseVal.width;
      const x = inner.left - outer.left + (left + width / 2) * scale - tip.offsetWidth / 2;
      const y = inner.top - outer.top + top * scale - tip.offsetHeight - 12;
      tip.style.left = `${Math.min(Math.max(x, 0), outer.width - tip.offsetWidth)}px`;
      tip.style.top = `${y}px`;
    }

    function drawPicture(digits, width) {
      const canvas = element("canvas", { width, height: digits.length / width }, tip);
      const context = canvas.getContext("2d");
      [...digits].forEach((digit, i) => {
        const grey = 255 - 17 * parseInt(digit, 16);
        context.fillStyle = `rgb(${grey} ${grey} ${grey})`;
        context.fillRect(i % width, Math.floor(i / width), 1, 1);
      });
    }

    function draw() {
      hide();
      const number = fields.reduce((sum, field, i) => sum * data.controls[i].values.length + field.get(), 0);
      data.states[number].forEach((numbers, i) => {
        const { svg } = panels[i];
        if (panels[i].drawn === numbers.join()) return; // this panel is the same in both states
        panels[i].drawn = numbers.join();
        svg.replaceChildren();
        const [title, frame, ...parts] = numbers.map((one) => data.parts[one]);
        const box = drawFrame(svg, title, frame);
        panels[i].marks = parts.flatMap((part) => drawPart(svg, box, part, data.parts[part.look], data.parts[part.told]));
        const some = panels[i].marks.length > 0;
        svg.setAttribute("aria-label", (title || `Panel ${i + 1}`) + (some ? ". Arrow keys go from mark to mark." : ""));
        svg.setAttribute("tabindex", some ? 0 : -1);
      });
    }

    draw();
    if (data.caption) {
      const still = figure.querySelector(".caption-text");
      still.classList.add("still-caption");
      still.after(element("span", { class: "caption-text answer-caption", text: data.caption }));
    }
    figure.prepend(whole);
    figure.classList.add("answers");
  }

  for (const script of document.querySelectorAll("script.answering")) {
    const data = JSON.parse(script.textContent);
    const figure = document.getElementById(data.figure);
    if (figure) answer(figure, data);
  }
});
