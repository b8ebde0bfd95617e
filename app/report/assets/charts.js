// Puts interactive charts in the place of the figures of class "chart". They are drawn from the figures' own points, or from the
// data block where any two plans are compared; the figures stay in the page for print and come back where a chart cannot be made.
// Under the pages' policy no style attribute may be parsed, so tooltips are drawn in the picture ("richText") and not as HTML.
"use strict";
(() => {
  const { echarts } = globalThis;
  if (!echarts) return;
  const calm = matchMedia("(prefers-reduced-motion: reduce)");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const LOG_FROM = 3;

  const make = (tag, properties = {}, parent = null) => {
    const made = Object.assign(document.createElement(tag), properties);
    if (parent) parent.append(made);
    return made;
  };

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

  // What all charts share: colours of the scheme that is shown, and no movement where it is not wanted.
  const common = () => {
    const text = { color: colour("ink"), fontFamily: getComputedStyle(document.body).fontFamily, fontSize: 12 };
    return {
      animation: !calm.matches,
      animationDuration: 200,
      textStyle: text,
      tooltip: {
        renderMode: "richText", confine: true, backgroundColor: colour("panel"), borderColor: colour("line"),
        textStyle: { ...text, fontSize: 13 },
      },
    };
  };

  const axis = (extra = {}) => ({
    axisLine: { lineStyle: { color: colour("line") } },
    axisLabel: { color: colour("quiet") },
    splitLine: { lineStyle: { color: colour("line"), width: 0.75 } },
    nameTextStyle: { color: colour("quiet") },
    ...extra,
  });

  // A place for a chart in front of the figure, with the figure's own title and description for those who do not see it.
  const place = (holder, height, label, { keys = false, hint = "" } = {}) => {
    const canvas = make("div", { className: "canvas" });
    if (keys) canvas.tabIndex = 0;
    canvas.style.height = `${height}px`;
    canvas.setAttribute("role", keys ? "application" : "img");
    canvas.setAttribute("aria-label", keys ? `${label} Arrow keys go from one to the next.` : label);
    const figure = holder.querySelector("svg.figure");
    if (figure) figure.before(canvas);
    else holder.append(canvas);
    const chart = echarts.init(canvas, null, { renderer: "svg" });
    if (hint) make("p", { className: "quiet hint", textContent: hint }, holder);
    return { canvas, chart };
  };

  // Draws now and again whenever the scheme or the width changes.
  const keep = (chart, canvas, option) => {
    const draw = () => chart.setOption({ ...common(), ...option() }, { notMerge: true });
    draw();
    for (const query of [dark, calm]) query.addEventListener("change", draw);
    new ResizeObserver(() => chart.resize()).observe(canvas);
    return draw;
  };

  const labelOf = (figure) => [...figure.querySelectorAll(":scope > title, :scope > desc")].map((each) => each.textContent).join(". ");

  // Left and right go from point to point in the given order, Enter opens what the point leads to.
  const byKeyboard = (canvas, chart, points, holder) => {
    const told = make("p", { className: "hidden", ariaLive: "polite" }, holder);
    let at = -1;
    canvas.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (step) {
        at = at < 0 ? 0 : (at + step + points.length) % points.length;
        const { seriesIndex, dataIndex } = points[at];
        chart.dispatchAction({ type: "downplay" });
        chart.dispatchAction({ type: "highlight", seriesIndex, dataIndex });
        chart.dispatchAction({ type: "showTip", seriesIndex, dataIndex });
        told.textContent = points[at].told;
      } else if (event.key === "Enter" && points[at]?.href) location.assign(points[at].href);
      else return;
      event.preventDefault();
    });
    canvas.addEventListener("blur", () => chart.dispatchAction({ type: "hideTip" }));
  };

  const pareto = (holder) => {
    const figure = holder.querySelector("svg.figure");
    const points = [...figure.querySelectorAll("a")].map((link) => {
      const circle = link.querySelector("circle");
      return {
        circle, gpus: Number(link.parentElement.dataset.gpus), href: link.getAttribute("href"), rank: link.dataset.rank,
        told: circle.querySelector("title").textContent, value: [Number(circle.dataset.s), Number(circle.dataset.gib)],
        size: 2 * Number(circle.getAttribute("r")) + 1,
      };
    });
    const ranks = new Set([...figure.querySelectorAll(".rank")].map((each) => each.textContent));
    const counts = [...new Set(points.map((point) => point.gpus))].sort((a, b) => a - b);
    const limit = Number(figure.querySelector("[data-limit-gib]")?.dataset.limitGib ?? 0);
    const upwards = figure.querySelector("[data-low]");
    const cut = Number(upwards.dataset.low) > 0;
    const times = points.map((point) => point.value[0]);
    const [low, high] = [Math.min(...times), Math.max(...times)];
    const log = high >= LOG_FROM * low;
    const margin = log ? 0 : 0.08 * (high - low) || 0.05 * high;
    const edges = log ? [low / 1.2, high * 1.1] : [low - margin, high + margin];
    const fine = matchMedia("(pointer: fine)").matches;
    const hint = fine
      ? "Point at a plan to read it, press to open it. Ctrl and the wheel zoom, dragging moves, a number of GPUs hides its plans. Arrow keys go from plan to plan."
      : "Touch a plan to read it, and a number of GPUs to hide its plans.";
    const { canvas, chart } = place(holder, 420, labelOf(figure), { keys: true, hint });
    const ordered = [];
    keep(chart, canvas, () => {
      ordered.length = 0;
      const series = counts.map((gpus, seriesIndex) => {
        const own = points.filter((point) => point.gpus === gpus).sort((a, b) => a.value[0] - b.value[0]);
        own.forEach((point, dataIndex) => ordered.push({ ...point, seriesIndex, dataIndex }));
        return {
          type: "scatter", name: `${gpus.toLocaleString("en")} GPUs`, color: getComputedStyle(own[0].circle).fill,
          emphasis: { scale: 1.6, itemStyle: { borderColor: colour("link"), borderWidth: 2 } },
          data: own.map((point) => ({
            value: point.value, symbolSize: point.size, told: point.told, href: point.href,
            label: { show: ranks.has(point.rank), formatter: point.rank, position: "left", color: colour("ink"), fontWeight: 700, textBorderColor: colour("page"), textBorderWidth: 3 },
            itemStyle: { opacity: 1, ...(point.rank ? { borderColor: colour("ink"), borderWidth: 1.5 } : { borderColor: colour("page"), borderWidth: 0.5 }) },
          })),
        };
      });
      ordered.sort((a, b) => a.value[0] - b.value[0]);
      const line = limit && {
        type: "line", name: "memory of the GPU", color: colour("limit"), symbol: "circle", symbolSize: 1, silent: true, tooltip: { show: false },
        lineStyle: { type: "dashed", width: 1 },
        data: edges.map((time, end) => ({
          value: [time, limit],
          label: { show: end === 1, formatter: `memory of the GPU, ${limit} GiB`, position: "top", align: "right", color: colour("limit") },
        })),
      };
      const lines = Math.ceil(counts.length / Math.max(Math.floor((canvas.clientWidth - 16) / 88), 1));
      const { tooltip } = common();
      return {
        tooltip: { ...tooltip, trigger: "item", formatter: ({ data }) => data.told.replace(": ", ":\n").replaceAll(", ", "\n") },
        legend: { textStyle: { color: colour("ink") }, top: 0, itemWidth: 10, itemHeight: 10, itemGap: 8, data: series.map((each) => each.name) },
        grid: { left: 44, right: 12, top: 36 + 22 * lines, bottom: 46 },
        dataZoom: fine ? [{ type: "inside", zoomOnMouseWheel: "ctrl", xAxisIndex: 0, filterMode: "none" },
          { type: "inside", zoomOnMouseWheel: "ctrl", yAxisIndex: 0, filterMode: "none" }] : [],
        xAxis: axis({
          type: log ? "log" : "value", logBase: 2, min: edges[0], max: edges[1], name: log ? "seconds a step, logarithmic" : "seconds a step",
          nameLocation: "middle", nameGap: 28, axisLabel: {
            color: colour("quiet"), showMinLabel: false, showMaxLabel: false, formatter: (value) => String(Number(value.toPrecision(3))),
          },
        }),
        yAxis: axis({
          type: "value", name: upwards.textContent, boundaryGap: [0, "12%"],
          ...(cut ? { min: Number(upwards.dataset.low), max: Number(upwards.dataset.high) } : { min: 0 }),
          axisLabel: { color: colour("quiet"), showMinLabel: !cut, showMaxLabel: !cut },
          nameTextStyle: { color: colour("quiet"), align: "left", padding: [0, 0, 0, -36] },
        }),
        series: line ? [...series, line] : series,
      };
    });
    chart.on("click", ({ data }) => data?.href && location.assign(data.href));
    byKeyboard(canvas, chart, ordered, holder);
  };

  const whatIf = (holder) => {
    const figure = holder.querySelector("svg.figure");
    const variants = [...figure.querySelectorAll(".variant")].map((each) => each.textContent);
    const names = [...figure.querySelectorAll(".panel-name")].map((each) => each.textContent);
    const limit = figure.querySelector("[data-limit]")?.dataset;
    const kinds = [...new Set([...figure.querySelectorAll("circle")].map((mark) => mark.dataset.kind))];
    const told = new Map();
    const marks = kinds.map(() => variants.map(() => null));
    for (const mark of figure.querySelectorAll("circle, path")) {
      const at = variants.indexOf(mark.dataset.variant);
      told.set(at, mark.querySelector("title").textContent);
      if (mark.dataset.kind) {
        const value = Number(mark.dataset.value);
        const label = mark.nextElementSibling;
        const [written, position] = [label.textContent, "below" in label.dataset ? "bottom" : "top"];
        marks[kinds.indexOf(mark.dataset.kind)][at] = { value, written, position, asked: mark.classList.contains("asked") };
      }
    }
    const height = 130;
    const { canvas, chart } = place(holder, kinds.length * height + 40, labelOf(figure), { keys: true });
    const points = variants.map((_, at) => ({ seriesIndex: 0, dataIndex: at, told: told.get(at) }));
    keep(chart, canvas, () => {
      const { tooltip } = common();
      const each = (of) => kinds.map((kind, index) => of(kind, index));
      const limits = limit ? [{
        type: "line", xAxisIndex: kinds.indexOf(limit.kind), yAxisIndex: kinds.indexOf(limit.kind), symbol: "none", silent: true,
        color: colour("limit"), lineStyle: { type: "dashed", width: 1 }, data: variants.map(() => Number(limit.limit)),
      }] : [];
      return {
        tooltip: { ...tooltip, trigger: "axis", formatter: (shown) => told.get(shown[0].dataIndex).replace(": ", ":\n").replaceAll(", ", "\n") },
        axisPointer: { link: [{ xAxisIndex: "all" }], lineStyle: { color: colour("quiet") } },
        grid: each((_, index) => ({ left: 46, right: 16, top: 34 + index * height, height: height - 52 })),
        xAxis: each((_, index) => axis({
          gridIndex: index, type: "category", data: variants, splitLine: { show: false },
          axisLabel: { show: index === kinds.length - 1, color: colour("quiet") }, axisTick: { show: false },
        })),
        yAxis: each((_, index) => axis({
          gridIndex: index, type: "value", min: 0, boundaryGap: [0, "25%"], splitNumber: 2, name: names[index],
          nameTextStyle: { color: colour("ink"), fontWeight: 600, align: "left", padding: [0, 0, 0, -40] }, nameGap: 10,
        })),
        series: [...each((_, index) => ({
          type: "line", xAxisIndex: index, yAxisIndex: index, connectNulls: false,
          data: marks[index].map((mark) => mark && {
            value: mark.value, symbolSize: mark.asked ? 11 : 7,
            label: { show: true, position: mark.position, color: colour("ink"), fontSize: 11, formatter: mark.written, textBorderColor: colour("page"), textBorderWidth: 3 },
          }),
          color: colour("compute"), symbol: "circle", lineStyle: { width: 1.75 },
        })), ...limits],
      };
    });
    byKeyboard(canvas, chart, points, holder);
  };

  // Differences as signed texts with so many decimals as a thousandth of the whole needs.
  const signed = (value, whole) => {
    const digits = Math.min(Math.max(3 - Math.floor(Math.log10(whole)), 1), 6);
    const text = value.toFixed(digits);
    return Number(text) === 0 ? "0" : `${value > 0 ? "+" : ""}${text}`;
  };

  const compare = (holder) => {
    const data = JSON.parse(holder.querySelector("script").textContent);
    const ranks = data.plans.map((plan) => plan.rank);
    const form = holder.parentElement.querySelector("form.choice") ?? make("form", { className: "choice" });
    if (!form.isConnected) {
      for (const [name, words] of [["a", "Compare plan "], ["b", "with plan "]]) {
        const select = make("select", { name }, make("label", { textContent: words }, form));
        for (const rank of ranks) make("option", { textContent: rank, selected: String(rank) === holder.dataset[name] }, select);
      }
      holder.before(form);
    }
    const verdict = make("p", { ariaLive: "polite" }, holder);
    const charts = [["time", "s", "Time of a step by term"], ["memory", "GiB", "Memory of the fullest stage by kind"]].map(([key, unit, title]) => {
      const part = make("div", {}, holder);
      make("p", { className: "chart-title", textContent: `${title}: difference in ${unit}` }, part);
      const { canvas, chart } = place(make("div", {}, part), 100, title);
      return { key, unit, title, canvas, chart };
    });
    const redraw = [];
    const chosen = () => ["a", "b"].map((name) => data.plans[ranks.indexOf(Number(form.elements[name].value))]);
    const rows = (key) => {
      const [one, other] = chosen();
      const whole = key === "time" ? one.step : one[key].reduce((sum, each) => sum + each, 0);
      const found = data[key].map((words, at) => ({ words, own: one[key][at], its: other[key][at], apart: other[key][at] - one[key][at] }));
      const told = found.filter((row) => Math.abs(row.apart) > 5e-4 * whole).sort((a, b) => Math.abs(a.apart) - Math.abs(b.apart));
      return { told, whole };
    };
    const tell = () => {
      const [one, other] = chosen();
      const apart = other.step - one.step;
      const [first, last] = [ranks.indexOf(one.rank), ranks.indexOf(other.rank)].sort((a, b) => a - b);
      const width = first === last ? 0 : data.widths[first]?.[last - first - 1];
      const sum = `Plan ${other.rank} takes ${signed(apart, one.step)} s (${(100 * apart / one.step).toFixed(1)}%) against plan ${one.rank}`;
      if (first === last) verdict.textContent = "Choose two plans.";
      else if (width === undefined) verdict.textContent = `${sum}.`;
      else {
        const ends = [apart - width, apart + width].map((end) => signed(end, one.step)).join(" to ");
        verdict.textContent = `${sum}, 80% range ${ends} s: ${Math.abs(apart) <= width ? "too close to call" : "told apart"}.`;
      }
      for (const each of charts) {
        const { told, whole } = rows(each.key);
        each.canvas.style.height = `${Math.max(told.length, 1) * (each.canvas.clientWidth < 480 ? 42 : 28) + 34}px`;
        each.canvas.setAttribute("aria-label", `${each.title}. ${told.toReversed().map((row) => `${row.words} ${signed(row.apart, whole)} ${each.unit}`).join(", ") || "no difference"}.`);
        each.chart.resize();
      }
      for (const draw of redraw) draw();
    };
    for (const each of charts) {
      redraw.push(keep(each.chart, each.canvas, () => {
        const { told, whole } = rows(each.key);
        const [one, other] = chosen();
        const narrow = each.canvas.clientWidth < 480;
        const reach = (narrow ? 1.7 : 1.25) * Math.max(0.01 * whole, ...told.map((row) => Math.abs(row.apart)));
        const { tooltip } = common();
        const line = (row) => `${row.words}\nplan ${one.rank}: ${Number(row.own.toPrecision(4))} ${each.unit}\nplan ${other.rank}: ${Number(row.its.toPrecision(4))} ${each.unit}\ndifference: ${signed(row.apart, whole)} ${each.unit} (${(100 * row.apart / whole).toFixed(1)}%)`;
        return {
          tooltip: { ...tooltip, trigger: "axis", axisPointer: { type: "shadow" }, formatter: (shown) => line(told[shown[0].dataIndex]) },
          grid: { left: narrow ? 118 : 290, right: 16, top: 4, bottom: 26 },
          xAxis: axis({ type: "value", min: -reach, max: reach, splitNumber: 4, axisLabel: { color: colour("quiet"), showMinLabel: false, showMaxLabel: false, formatter: (value) => String(Number(value.toPrecision(2))) } }),
          yAxis: axis({ type: "category", data: told.map((row) => row.words), axisTick: { show: false }, axisLine: { show: false }, axisLabel: { color: colour("ink"), width: narrow ? 110 : 280, overflow: "break", fontSize: narrow ? 11 : 12, lineHeight: 12 } }),
          series: [{
            type: "bar", barMaxWidth: 14,
            data: told.map((row) => ({
              value: row.apart, itemStyle: { color: colour(row.apart > 0 ? "tp" : "compute") },
              label: { show: true, color: colour("ink"), position: row.apart > 0 ? "right" : "left", formatter: () => signed(row.apart, whole) },
            })),
          }],
        };
      }));
    }
    form.addEventListener("change", tell);
    tell();
  };

  const makers = { pareto, what_if: whatIf, compare };
  // Only where it comes into view: a page opens as fast as without charts.
  const seen = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      if (!isIntersecting) continue;
      seen.unobserve(target);
      makers[target.dataset.chart](target);
      target.classList.add("drawn");
    }
  }, { rootMargin: "300px" });
  for (const holder of document.querySelectorAll("[data-chart]")) seen.observe(holder);
})();
