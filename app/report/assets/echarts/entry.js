// What the charts of a report use of ECharts, and nothing else.
import { BarChart, LineChart, ScatterChart } from "echarts/charts";
import { DataZoomInsideComponent, GridComponent, LegendComponent, TooltipComponent } from "echarts/components";
import { init, use } from "echarts/core";
import { SVGRenderer } from "echarts/renderers";

use([
  BarChart, LineChart, ScatterChart, DataZoomInsideComponent, GridComponent, LegendComponent, TooltipComponent, SVGRenderer,
]);

export { init };
